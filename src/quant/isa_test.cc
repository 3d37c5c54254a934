// The kernels of every instruction set this processor has, against plain C++. What they do to whole codecs is in contract_test.cc.
#include "quant/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "base/f16.h"
#include "quant/frame.h"
#include "quant/lanes.h"
#include "quant/registry.h"

namespace tierkv::quant {
namespace {

constexpr uint32_t kSeed = 20261115;

class IsaKernels : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(set_active_isa(GetParam()));
    kernels = active_kernels();
    if (!kernels) GTEST_SKIP() << "plain C++ is the reference";
  }
  void TearDown() override { set_active_isa(before_); }

  std::vector<float> normals(size_t n) {
    std::normal_distribution<float> normal;
    std::vector<float> x(n);
    for (float& v : x) v = normal(rng);
    return x;
  }

  const Kernels* kernels = nullptr;
  std::mt19937 rng{kSeed};

 private:
  const std::string_view before_ = active_isa();
};
INSTANTIATE_TEST_SUITE_P(All, IsaKernels, ::testing::ValuesIn(available_isas()), [](const auto& info) { return std::string(info.param); });

TEST(Isa, TheForcedOneRuns) {
  const char* forced = std::getenv("TIERKV_FORCE_ISA");
  const auto isas = available_isas();
  if (forced && std::find(isas.begin(), isas.end(), forced) != isas.end()) {
    EXPECT_EQ(active_isa(), forced);
  } else {
    EXPECT_EQ(active_isa(), isas.front());
  }
  EXPECT_EQ(isas.back(), "scalar");
  const std::string_view before = active_isa();
  EXPECT_FALSE(set_active_isa("mmx"));
  EXPECT_EQ(active_isa(), before);
}

TEST_P(IsaKernels, PassTheCheckAtStart) { EXPECT_TRUE(kernels_work(*kernels)); }

TEST_P(IsaKernels, AWrongKernelIsFoundOut) {
  Kernels broken = *kernels;
  broken.exp_sum = [](float* x, uint32_t n, float) {
    for (uint32_t i = 0; i < n; ++i) x[i] = 1.0f;
    return static_cast<float>(n);
  };
  EXPECT_FALSE(kernels_work(broken));
  broken = *kernels;
  broken.scores_by_token = [](const PackedSide&, const std::byte*, const float*, const float*, const float*, uint32_t, uint32_t rows, float* out,
                              size_t, const KernelScratch&) { std::fill(out, out + rows, 0.0f); };
  EXPECT_FALSE(kernels_work(broken));
}

TEST_P(IsaKernels, ExpIsRightToSevenDigits) {
  std::vector<float> x;
  for (float v = 0.0f; v > -86.9f; v -= 0.0137f) x.push_back(v);
  while (x.size() % 16) x.push_back(-1.0f);
  std::vector<float> y = x;
  double want = 0;
  const float sum = kernels->exp_sum(y.data(), static_cast<uint32_t>(y.size()), 0.0f);
  for (size_t i = 0; i < x.size(); ++i) {
    const double e = std::exp(static_cast<double>(x[i]));
    ASSERT_NEAR(y[i], e, 4e-7 * e) << x[i];
    want += e;
  }
  EXPECT_NEAR(sum, want, 1e-5 * want);
}

TEST_P(IsaKernels, HiddenScoresGetNoWeightAtAll) {
  std::vector<float> x(32, -std::numeric_limits<float>::infinity());
  x[3] = 5.0f, x[17] = 5.0f - 90.0f;
  EXPECT_EQ(kernels->largest(x.data(), 32), 5.0f);
  EXPECT_EQ(kernels->exp_sum(x.data(), 32, 5.0f), 1.0f);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], i == 3 ? 1.0f : 0.0f) << i;
}

TEST_P(IsaKernels, RotationGivesTheBitsOfPlainCode) {
  for (const uint32_t d : {32u, 48u, 64u, 80u, 96u, 128u, 160u, 256u}) {
    const std::vector<float> rows = normals(3 * d);
    std::vector<float> fast = rows, plain = rows;
    to_frame(Frame::hadamard, fast.data(), 3, d);
    set_active_isa("scalar");
    to_frame(Frame::hadamard, plain.data(), 3, d);
    set_active_isa(GetParam());
    ASSERT_EQ(std::memcmp(fast.data(), plain.data(), fast.size() * sizeof(float)), 0) << d;
  }
}

TEST_P(IsaKernels, BlocksAndDecodedRowsAreTheSameBits) {
  for (const CodecRow& row : codec_rows()) {
    for (int bits = row.min_bits; bits <= row.max_bits; ++bits) {
      CodecSpec spec;
      spec.id = row.id, spec.bits = static_cast<uint8_t>(bits);
      for (const uint16_t flags : {0, 2, 4, 8, 16}) {
        if ((flags & ~row.allowed_flags) != 0) continue;
        spec.flags = flags;
        for (const Side side : {Side::key, Side::value}) {
          const BlockShape shape{64, 96};
          auto codec = make_codec(spec, side, shape);
          ASSERT_TRUE(codec.ok()) << codec.status().message();
          const std::vector<float> rows = normals(64 * 96);
          std::vector<std::byte> fast((*codec)->bytes()), plain = fast;
          std::vector<float> fast_rows(rows.size()), plain_rows(rows.size());
          ASSERT_TRUE((*codec)->encode(rows.data(), {}, fast).ok());
          (*codec)->decode(fast, {}, 0, 64, fast_rows.data());
          set_active_isa("scalar");
          ASSERT_TRUE((*codec)->encode(rows.data(), {}, plain).ok());
          (*codec)->decode(plain, {}, 0, 64, plain_rows.data());
          set_active_isa(GetParam());
          ASSERT_EQ(fast, plain) << to_string(spec);
          ASSERT_EQ(fast_rows, plain_rows) << to_string(spec);
        }
      }
    }
  }
}

// The largest codes with the largest factors, over the longest rows: narrow sums must be widened in time.
TEST_P(IsaKernels, SumsOfTheLargestProductsDoNotOverflow) {
  constexpr uint32_t d = 256, n = 16;
  for (const uint32_t bits : {1u, 2u, 3u, 4u, 5u, 8u}) {
    const Lanes lanes(n, d, bits);
    const uint32_t largest = (1u << bits) - 1u;
    const std::vector<uint16_t> codes(n * d, static_cast<uint16_t>(largest));
    std::vector<std::byte> packed(lanes.bytes());
    lanes.pack(codes.data(), d, 1, packed.data());
    for (const uint32_t planes : {1u, 2u}) {
      for (const uint32_t count : {1u, 2u, 3u, 4u, 7u, 9u}) {  // few rows meet packed codes, many unpacked bytes
        PackedSide side = lanes.packed_side();
        side.group = d, side.across = n, side.factor_planes = planes;
        std::vector<int8_t> bytes(kernel_bytes(d, count));
        std::vector<float> floats(kernel_floats(d, count, 1)), scales(n, 1.0f), offsets(n, 0.0f), q(count * d), out(count * n);
        for (uint32_t i = 0; i < count; ++i) std::fill_n(q.begin() + i * d, d, i % 2 ? 1.0f : -1.0f);
        kernels->scores_by_token(side, packed.data(), scales.data(), offsets.data(), q.data(), count, n, out.data(), n,
                                 {bytes.data(), floats.data()});
        for (uint32_t i = 0; i < count; ++i) {
          const double want = (i % 2 ? 1.0 : -1.0) * d * largest;
          for (uint32_t t = 0; t < n; ++t) ASSERT_NEAR(out[i * n + t], want, 1e-5 * std::fabs(want)) << bits << " bits, count " << count;
        }
      }
    }
  }
}

TEST_P(IsaKernels, HalfRowsMatchDoublePrecision) {
  for (const bool bf16 : {false, true}) {
    for (const uint32_t d : {32u, 64u, 80u, 128u, 256u}) {
      for (const uint32_t count : {1u, 2u, 3u, 4u, 5u, 8u, 9u, 17u}) {
        const uint32_t n = 37;
        const std::vector<float> wide = normals(n * d), q = normals(count * d);
        std::vector<uint16_t> rows(n * d);
        for (size_t i = 0; i < rows.size(); ++i) rows[i] = bf16 ? f32_to_bf16(wide[i]) : f32_to_f16(wide[i]);
        const auto value = [&](uint32_t t, uint32_t c) { return bf16 ? bf16_to_f32(rows[t * d + c]) : f16_to_f32(rows[t * d + c]); };
        std::vector<float> out(count * n), scratch(16 * d), acc(count * d, 0.5f);
        kernels->half_scores(rows.data(), bf16, d, q.data(), count, n, out.data(), n, scratch.data());
        kernels->half_accumulate(rows.data(), bf16, d, out.data(), n, count, n, acc.data());
        for (uint32_t i = 0; i < count; ++i) {
          std::vector<double> sums(d, 0.5);
          for (uint32_t t = 0; t < n; ++t) {
            double want = 0;
            for (uint32_t c = 0; c < d; ++c) want += static_cast<double>(q[i * d + c]) * value(t, c);
            ASSERT_NEAR(out[i * n + t], want, 1e-5 * d) << "count " << count << " dim " << d;
            for (uint32_t c = 0; c < d; ++c) sums[c] += static_cast<double>(out[i * n + t]) * value(t, c);
          }
          for (uint32_t c = 0; c < d; ++c) ASSERT_NEAR(acc[i * d + c], sums[c], 1e-4 * d) << "count " << count << " dim " << d;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tierkv::quant
