// The kernels of every instruction set this processor has, against plain C++. What they do to whole codecs is in contract_test.cc.
#include "quant/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>

#include "base/f16.h"
#include "quant/frame.h"
#include "quant/lanes.h"
#include "quant/registry.h"
#include "quant/table_testing.h"

namespace tierkv::quant {
namespace {

constexpr uint32_t kSeed = 20261115;
constexpr BlockContext kContext{0, 0, 388, nullptr};  // where blocks begin: codecs with tables turn keys back from there

class IsaKernels : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(set_active_isa(GetParam()));
    kernels = active_kernels();
    ASSERT_NE(kernels, nullptr);
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

std::vector<std::string_view> all_but_scalar() {
  std::vector<std::string_view> isas = available_isas();
  isas.pop_back();
  return isas;
}
INSTANTIATE_TEST_SUITE_P(All, IsaKernels, ::testing::ValuesIn(all_but_scalar()),
                         [](const auto& info) { return std::string(info.param); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(IsaKernels);  // a processor with nothing but plain C++

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
  broken.scores_by_token = [](const PackedSide&, const std::byte*, const float*, const float*, const int8_t*, const RoundedRow*,
                              uint32_t, uint32_t rows, float* out, size_t,
                              const KernelScratch&) { std::fill(out, out + rows, 0.0f); };
  EXPECT_FALSE(kernels_work(broken));
  broken = *kernels;
  broken.add_products = [](const BetterRows&, const float*, uint32_t, uint32_t, float*, size_t) {};
  EXPECT_FALSE(kernels_work(broken));
  broken = *kernels;
  broken.better_products = [](const BetterRows& better, const float*, const float*, uint32_t, uint32_t count, float* out) {
    std::fill(out, out + count * better.count, 0.0f);
  };
  EXPECT_FALSE(kernels_work(broken));
  broken = *kernels;
  broken.multiply = [](const float*, uint32_t n, const float*, uint32_t, uint32_t count, float* out) {
    std::fill(out, out + count * n, 0.0f);
  };
  EXPECT_FALSE(kernels_work(broken));
  broken = *kernels;
  broken.multiply_pairs = [](const int32_t*, const float*, uint32_t n, const float*, const float*, uint32_t, uint32_t count,
                             float* out) { std::fill(out, out + count * n, 0.0f); };
  EXPECT_FALSE(kernels_work(broken));
  broken = *kernels;
  broken.transpose_tile = [](const float*, size_t, uint32_t n, float* tile) { std::fill(tile, tile + 16 * n, 0.0f); };
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

TEST_P(IsaKernels, RowsTurnInPairs) {
  const struct { uint32_t dim, apart, pairs; } all[] = {{64, 1, 32}, {80, 1, 20}, {64, 32, 32}, {96, 16, 16}, {256, 128, 128}};
  for (const auto& [d, apart, pairs] : all) {
    const std::vector<float> rows = normals(3 * d), angles = normals(pairs);
    std::vector<float> step(2 * d, 0.0f), out(3 * d);
    std::fill_n(step.begin(), d, 1.0f);
    std::vector<double> want(rows.begin(), rows.end());
    for (uint32_t p = 0; p < pairs; ++p) {
      const uint32_t a = apart == 1 ? 2 * p : p, b = a + apart;
      const double c = std::cos(double{angles[p]}), s = std::sin(double{angles[p]});
      step[a] = step[b] = static_cast<float>(c), step[d + a] = static_cast<float>(-s), step[d + b] = static_cast<float>(s);
      for (uint32_t r = 0; r < 3; ++r) {
        want[r * d + a] = c * rows[r * d + a] - s * rows[r * d + b];
        want[r * d + b] = s * rows[r * d + a] + c * rows[r * d + b];
      }
    }
    kernels->turn_rows(rows.data(), 3, d, apart, step.data(), out.data());
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], want[i], 1e-6 * (1 + std::fabs(want[i]))) << d << " at " << i;
  }
}

// Columns as long as they may be: spread out, all in one channel, and along a query, where the sum of products is the largest there
// is.
TEST_P(IsaKernels, ProductsInPairsAreThoseOfFloats) {
  const auto length = [](const auto& x, size_t from, size_t n, size_t apart) {
    double squares = 0.0;
    for (size_t c = 0; c < n; ++c) squares += double{x[from + c * apart]} * x[from + c * apart];
    return std::sqrt(squares);
  };
  for (const uint32_t d : {32u, 64u, 80u, 128u, 256u}) {
    for (const uint32_t n : {16u, 32u, 48u, 64u, 80u, 112u, 256u}) {
      for (const uint32_t count : {1u, 2u, 3u, 4u, 5u, 9u}) {
        std::vector<float> rows = normals(count * d), matrix = normals(d * n), scales(n), units(n), row_scales(count);
        std::fill_n(rows.begin() + (count - 1) * d, count > 1 ? d : 0, 0.0f);
        for (uint32_t c = 0; c < d; ++c)
          matrix[c * n] = rows[c], matrix[c * n + 1] = c == 5 ? -3.0f : 0.0f, matrix[c * n + 2] = 0.0f;
        std::vector<uint16_t> halves(matrix.size());
        for (size_t i = 0; i < matrix.size(); ++i) halves[i] = f32_to_f16(matrix[i]), matrix[i] = f16_to_f32(halves[i]);
        for (uint32_t j = 0; j < n; ++j) {
          const double size = length(matrix, j, d, n);
          scales[j] = size > 0 ? static_cast<float>(kPairLength / size) : 0.0f;
          units[j] = static_cast<float>(size / kPairLength);
        }
        for (uint32_t i = 0; i < count; ++i) {
          const double size = length(rows, i * d, d, 1);
          row_scales[i] = size > 0 ? static_cast<float>(kPairLength / size) : 0.0f;
        }
        std::vector<int32_t> pairs(d / 2 * n);
        std::vector<float> out(count * n, 7.0f);
        kernels->pair_rows(halves.data(), d, n, scales.data(), pairs.data());
        kernels->multiply_pairs(pairs.data(), units.data(), n, rows.data(), row_scales.data(), d, count, out.data());
        for (uint32_t i = 0; i < count * n; ++i) {
          const uint32_t row = i / n, column = i % n;
          double want = 0.0;
          for (uint32_t c = 0; c < d; ++c) want += double{rows[row * d + c]} * matrix[c * n + column];
          const double most = length(rows, row * d, d, 1) * length(matrix, column, d, n);
          ASSERT_NEAR(out[i], want, 8e-5 * most) << d << " x " << n << ", row " << row << " of " << count << ", column " << column;
        }
      }
    }
  }
}

// Rows that are hard on a fit: what random rows hold nothing of.
std::vector<std::vector<float>> hard_rows(const BlockShape& shape, std::mt19937& rng) {
  const size_t n = static_cast<size_t>(shape.tokens) * shape.head_dim;
  std::normal_distribution<float> normal;
  std::student_t_distribution<float> student(2.0f);
  std::vector<std::vector<float>> all(7, std::vector<float>(n));
  for (size_t i = 0; i < n; ++i) {
    const uint32_t t = static_cast<uint32_t>(i / shape.head_dim), c = static_cast<uint32_t>(i % shape.head_dim);
    all[0][i] = normal(rng);
    all[1][i] = std::clamp(student(rng), -6e4f, 6e4f) * std::exp2(static_cast<float>(c % 7)) / 64.0f + static_cast<float>(c % 3);
    all[2][i] = i % 2 ? 0.0f : -0.0f;                                             // whose zero it is must not show
    all[3][i] = t % 5 == 0 ? -0.0f : c % 4 == 0 ? 1.5f : -static_cast<float>(t);  // constant rows and channels, ties on every grid
    all[4][i] = normal(rng) * 1e-28f * std::exp2(static_cast<float>(t % 16));     // around the smallest group there is
    all[5][i] = normal(rng) * 1e25f;                                              // squares past float
    all[6][i] = (i * 2654435761u >> 13) % 251 == 0 ? 400.0f : static_cast<float>(static_cast<int>(i % 9) - 4) * 0.25f;
  }
  return all;
}

// Also decoded by parts, because eviction leaves runs of rows that start and end anywhere.
void expect_same_block(std::string_view isa, const Codec& codec, const std::vector<float>& rows, const std::string& what) {
  const BlockShape shape = codec.shape();
  const uint32_t part = shape.tokens / 3, rest = shape.tokens - part;
  std::vector<std::byte> fast(codec.bytes()), plain = fast;
  std::vector<float> fast_rows(rows.size()), plain_rows(rows.size()), parts(rows.size());
  const Status fast_status = codec.encode(rows.data(), kContext, fast);
  set_active_isa("scalar");
  const Status plain_status = codec.encode(rows.data(), kContext, plain);
  codec.decode(plain, kContext, 0, shape.tokens, plain_rows.data());
  set_active_isa(isa);
  ASSERT_EQ(fast_status.message(), plain_status.message()) << what;
  ASSERT_EQ(fast, plain) << what;
  if (!plain_status.ok()) return;
  codec.decode(fast, kContext, 0, shape.tokens, fast_rows.data());
  codec.decode(fast, kContext, 0, part, parts.data());
  codec.decode(fast, kContext, part, rest, parts.data() + static_cast<size_t>(part) * shape.head_dim);
  ASSERT_EQ(std::memcmp(fast_rows.data(), plain_rows.data(), rows.size() * sizeof(float)), 0) << what;
  ASSERT_EQ(std::memcmp(parts.data(), plain_rows.data(), rows.size() * sizeof(float)), 0) << what << ", by parts";
}

// Every spec of a row whose blocks are made in a way of their own, as far as kernels have a part in them.
std::vector<CodecSpec> specs_of(const CodecRow& row, const BlockShape& shape) {
  const bool brief = std::getenv("TIERKV_TEST_BRIEF") != nullptr;  // on an emulated processor
  std::vector<CodecSpec> specs;
  for (const int bits : testing::widths_of(row)) {
    if (row.parts == 1 && bits > static_cast<int>(kMaxCodeBits) + 1) continue;
    for (const uint16_t flags : {0, 1, 2, 4, 8, 10, 16, 17}) {
      for (const uint16_t group : {0, 32}) {
        if ((flags & ~row.allowed_flags) != 0 || (group != 0 && !row.takes_group)) continue;
        if (shape.tokens == 128 && (flags & (1 | 16)) != 0) continue;  // the wrappers are tried on the small shapes
        if (shape.tokens == 128 && brief && (flags | group) != 0) continue;
        specs.push_back({row.id, static_cast<uint8_t>(bits), 0, group, flags});
        const bool better = row.max_bits != 0 && bits <= 16 && (flags | group) == 0 && shape.tokens == 64;
        if (better) specs.push_back({row.id, static_cast<uint8_t>(bits), 3, 0, 0});
      }
    }
  }
  return specs;
}

TEST_P(IsaKernels, BlocksAndDecodedRowsAreTheSameBits) {
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::set<uint16_t> met;
  for (const BlockShape shape : {BlockShape{64, 96}, BlockShape{128, 128}, BlockShape{48, 80}, BlockShape{16, 256}}) {
    std::vector<std::vector<float>> cases = hard_rows(shape, rng);
    cases.push_back(testing::TableModel::of(shape.head_dim).turned(testing::random_rows(shape, kSeed), kContext.first_position));
    for (const CodecRow& row : codec_rows()) {
      for (const CodecSpec& spec : specs_of(row, shape)) {
        for (const Side side : {Side::key, Side::value}) {
          if (!testing::has_side(row, side)) continue;
          auto codec = testing::make_any_codec(spec, side, shape);
          ASSERT_TRUE(codec.ok()) << codec.status().message();
          for (size_t k = 0; k < cases.size(); ++k) {
            const std::string what = to_string(spec) + (side == Side::key ? " keys " : " values ") + std::to_string(shape.tokens) +
                                     "x" + std::to_string(shape.head_dim) + " case " + std::to_string(k);
            expect_same_block(GetParam(), **codec, cases[k], what);
            if (HasFatalFailure()) return;
          }
          met.insert(row.id);
        }
      }
    }
  }
  EXPECT_EQ(met.size(), codec_rows().size()) << "a row of the registry was left out";
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
        std::vector<int8_t> factors(static_cast<size_t>(count) * planes * d);
        std::vector<RoundedRow> terms(count);
        kernels->round_queries(q.data(), count, d, d, planes, factors.data(), terms.data());
        kernels->scores_by_token(side, packed.data(), scales.data(), offsets.data(), factors.data(), terms.data(), count, n,
                                 out.data(), n, {bytes.data(), floats.data(), {}});
        for (uint32_t i = 0; i < count; ++i) {
          const double want = (i % 2 ? 1.0 : -1.0) * d * largest;
          for (uint32_t t = 0; t < n; ++t)
            ASSERT_NEAR(out[i * n + t], want, 1e-5 * std::fabs(want)) << bits << " bits, count " << count;
        }
      }
    }
  }
}

TEST_P(IsaKernels, RowsTheyRefuseAreRefusedInTheSameWords) {
  const BlockShape shape{32, 64};
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(), 1.1e30f, 65520.0f, -1e30f}) {
    for (const char* name : {"fp16", "bf16", "int8", "kivi2-g32", "kivi4+s8", "asym4", "turbo3", "rot2", "kivi4+center", "klt1.875",
                             "kvquant3", "squat2"}) {
      auto codec = testing::make_any_codec(*parse_codec(name), Side::key, shape);
      ASSERT_TRUE(codec.ok());
      for (const size_t at : {size_t{0}, size_t{777}, size_t{32 * 64 - 1}}) {
        std::vector<float> rows = normals(32 * 64);
        rows[at] = bad;
        expect_same_block(GetParam(), **codec, rows, std::string(name) + " with " + std::to_string(bad));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(IsaKernels, SixteenBitFloatsAreRoundedAsPlainCodeDoes) {
  std::vector<float> x;
  for (uint32_t bits = 0; bits < 0x7F800000u; bits += 0x1FFFu) {
    for (const uint32_t sign : {0u, 0x80000000u}) x.push_back(std::bit_cast<float>(bits | sign));
  }
  for (uint32_t half = 0; half < 0x7C00u; ++half) {  // every half, the middle to the next, and both neighbours of that
    const uint32_t middle =
        std::bit_cast<uint32_t>(0.5f * (f16_to_f32(static_cast<uint16_t>(half)) + f16_to_f32(static_cast<uint16_t>(half + 1))));
    for (const uint32_t bits : {middle - 1, middle, middle + 1}) {
      if (half < 0x7BFFu) x.push_back(std::bit_cast<float>(bits));
    }
  }
  for (const float edge : {65504.0f, 65519.996f, 65520.0f, 1e38f}) x.push_back(edge);
  while (x.size() % 16) x.push_back(-0.0f);
  const auto n = static_cast<uint32_t>(x.size());
  std::vector<uint16_t> out(n);
  for (const bool bf16 : {false, true}) {
    kernels->narrow(x.data(), bf16, n, out.data());
    for (uint32_t i = 0; i < n; ++i) ASSERT_EQ(out[i], bf16 ? f32_to_bf16(x[i]) : f32_to_f16(x[i])) << x[i];
  }
}

// Weights as a softmax has them, from 1 to nearly nothing, and shares of many query heads; sums may end anywhere in a vector.
TEST_P(IsaKernels, KeptWeightsAndTheirSumsAreThoseOfPlainCode) {
  std::mt19937 rng(5);
  std::uniform_real_distribution<float> exponent(-30.0f, 0.0f), share(0.0f, 1.0f);
  for (const uint32_t n : {1u, 5u, 16u, 31u, 64u, 100u, 128u, 255u, 256u}) {
    const uint32_t stride = (n + 15) / 16 * 16;
    for (const uint32_t count : {1u, 3u, 4u, 7u, 48u}) {
      std::vector<float> weights(count * stride), shares(count), sums(n + 1, 0.5f);
      for (float& w : weights) w = 2.0f + exponent(rng);
      weights[0] = 2.0f, weights[stride - 1] = -std::numeric_limits<float>::infinity();
      for (float& s : shares) s = share(rng) / kKeptUnit;
      std::vector<float> expected = weights;
      std::vector<uint16_t> kept(weights.size());
      for (uint32_t i = 0; i < count; ++i) {
        const float sum = kernels->exp_sum(expected.data() + i * stride, stride, 2.0f);
        ASSERT_EQ(kernels->exp_sum_kept(weights.data() + i * stride, stride, 2.0f, kept.data() + i * stride), sum);
      }
      ASSERT_EQ(weights, expected) << "whoever listens changes nothing";
      for (size_t i = 0; i < kept.size(); ++i) ASSERT_EQ(kept[i], f32_to_f16(weights[i] * kKeptUnit)) << weights[i];
      kernels->sum_kept(kept.data(), stride, shares.data(), count, n, true, sums.data());
      for (uint32_t t = 0; t < n; ++t) {
        double want = 0.5, exact = 0.5;
        for (uint32_t i = 0; i < count; ++i) {
          want += static_cast<double>(shares[i]) * f16_to_f32(kept[i * stride + t]);
          exact += static_cast<double>(shares[i]) * kKeptUnit * weights[i * stride + t];
        }
        ASSERT_NEAR(sums[t], want, 1e-6 * want) << n << " tokens, " << count << " heads, token " << t;
        ASSERT_NEAR(sums[t], exact, 5e-4 * exact) << n << " tokens, " << count << " heads, token " << t;
      }
      ASSERT_EQ(sums[n], 0.5f) << "past the end";
      std::vector<float> stats(n + 1, 3.0f), anew(n + 1, 9.0f);
      kernels->sum_kept(kept.data(), stride, shares.data(), count, n, false, anew.data());
      for (uint32_t t = 0; t < n; ++t) ASSERT_NEAR(anew[t], sums[t] - 0.5f, 1e-6 * sums[t]);
      ASSERT_EQ(anew[n], 9.0f) << "past the end";
      kernels->fade_add(stats.data(), 0.25f, sums.data(), n);
      for (uint32_t t = 0; t < n; ++t) ASSERT_EQ(stats[t], 0.75f + sums[t]);
      ASSERT_EQ(stats[n], 3.0f) << "past the end";
    }
  }
}

TEST_P(IsaKernels, WithinFindsWhatIsNotInRangeAnywhere) {
  std::vector<float> x = normals(64);
  EXPECT_TRUE(kernels->within(x.data(), 64, 10.0f));
  for (size_t i = 0; i < x.size(); ++i) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), 10.00001f, -11.0f}) {
      std::vector<float> y = x;
      y[i] = bad;
      EXPECT_FALSE(kernels->within(y.data(), 64, 10.0f)) << bad << " at " << i;
      y[i] = -10.0f;
      EXPECT_TRUE(kernels->within(y.data(), 64, 10.0f));
    }
  }
}

TEST_P(IsaKernels, ProductsWithAMatrixMatchDoublePrecision) {
  for (const uint32_t d : {32u, 64u, 80u, 128u}) {
    for (const uint32_t n : {16u, 32u, 48u, 64u, 80u, 112u, 128u}) {
      for (const uint32_t count : {1u, 2u, 3u, 4u, 5u, 9u}) {
        const std::vector<float> matrix = normals(d * n), rows = normals(count * d);
        std::vector<float> out(count * n, 7.0f);
        kernels->multiply(matrix.data(), n, rows.data(), d, count, out.data());
        for (uint32_t i = 0; i < count * n; ++i) {
          double want = 0;
          for (uint32_t c = 0; c < d; ++c) want += static_cast<double>(rows[i / n * d + c]) * matrix[c * n + i % n];
          ASSERT_NEAR(out[i], want, 1e-5 * d) << "dim " << d << " n " << n << " count " << count;
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
        const auto value = [&](uint32_t t, uint32_t c) {
          return bf16 ? bf16_to_f32(rows[t * d + c]) : f16_to_f32(rows[t * d + c]);
        };
        std::vector<float> out(count * n), scratch(16 * d), acc(count * d, 0.5f);
        kernels->half_scores(rows.data(), bf16, d, q.data(), count, n, out.data(), n, scratch.data(), {});
        kernels->half_accumulate(rows.data(), bf16, d, out.data(), n, count, n, acc.data(), {});
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
