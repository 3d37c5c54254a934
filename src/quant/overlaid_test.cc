#include "quant/overlaid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/f16.h"
#include "quant/contract_testing.h"
#include "quant/frame.h"
#include "quant/isa.h"

namespace tierkv::quant {
namespace {

using namespace tierkv::quant::testing;

constexpr BlockShape kShape{128, 64};
constexpr uint32_t kTop = 5;

// A codec with better rows and the one below it, and what both make of the same rows.
struct Both {
  std::unique_ptr<Codec> base, better;
  std::vector<float> rows, from_base, from_better;
  std::vector<float> lost, left;  // by the base and in the end, in the error frame
  std::vector<std::byte> bytes;

  Both(const char* name, Side side, const std::vector<float>& mass = {}) {
    CodecSpec spec = *parse_codec(name);
    base = make_any_codec(spec, side, kShape).value();
    spec.top = kTop;
    better = make_any_codec(spec, side, kShape).value();
    rows = rows_for(*base);
    BlockContext ctx = kContext;
    ctx.mass = mass.empty() ? nullptr : mass.data();
    const std::vector<std::byte> plain = encode(*base, rows);
    bytes.resize(better->bytes());
    left.resize(static_cast<size_t>(kShape.tokens) * better->error_channels());
    EXPECT_TRUE(better->encode_with_errors(rows.data(), ctx, bytes, left.data()).ok());
    read_better_rows();
    EXPECT_EQ(std::memcmp(bytes.data(), plain.data(), plain.size()), 0) << "the base's bytes come first";
    from_base.resize(rows.size());
    from_better.resize(rows.size());
    base->decode(plain, kContext, 0, kShape.tokens, from_base.data());
    better->decode(bytes, kContext, 0, kShape.tokens, from_better.data());
  }

  // What better rows give back, read as overlaid.h says that it is written.
  void read_better_rows() {
    const uint32_t n = better->error_channels();
    const std::byte* at = bytes.data() + base->bytes();
    const auto byte = [&](size_t i) { return std::to_integer<uint32_t>(at[i]); };
    lost = left;
    for (uint32_t i = 0; i < kTop; ++i) {
      const float step = f16_to_f32(static_cast<uint16_t>(byte(kTop + i) << 7));
      for (uint32_t c = 0; c < n; ++c) {
        const size_t three = 2 * kTop + i * (n * 3 / 8) + c / 8 * 3;
        const uint32_t packed = byte(three) | byte(three + 1) << 8 | byte(three + 2) << 16;
        lost[byte(i) * n + c] += step * (static_cast<float>(packed >> 3 * (c % 8) & 7u) - 3.5f);
      }
    }
  }

  // As the codec counts errors.
  double squared_error(const std::vector<float>& of, uint32_t t) const {
    const uint32_t n = better->error_channels();
    return std::pow(norm(of.data() + static_cast<size_t>(t) * n, n), 2.0);
  }

  // Rows that are not the base's to the bit.
  std::vector<uint32_t> changed() const {
    std::vector<uint32_t> out;
    for (uint32_t t = 0; t < kShape.tokens; ++t) {
      const size_t at = static_cast<size_t>(t) * kShape.head_dim;
      if (std::memcmp(&from_base[at], &from_better[at], kShape.head_dim * sizeof(float)) != 0) out.push_back(t);
    }
    return out;
  }

  // What choosing by mass times squared error must give.
  std::vector<uint32_t> expected(const std::vector<float>& mass) const {
    std::vector<uint32_t> order(kShape.tokens);
    std::iota(order.begin(), order.end(), 0u);
    const auto worth = [&](uint32_t t) { return squared_error(lost, t) * (mass.empty() ? 1.0 : double{mass[t]}); };
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return worth(a) > worth(b); });
    order.resize(kTop);
    std::sort(order.begin(), order.end());
    return order;
  }
};

constexpr struct {
  const char* name;
  Side side;
} kCases[] = {{"rot2", Side::key}, {"mid2", Side::value}, {"kivi2", Side::value}, {"klt1.5", Side::key}, {"klt1.5", Side::value}};

TEST(Overlaid, RowsOfLargestMassTimesErrorAreKeptBetterAndTheOthersAreTheBases) {
  std::mt19937 rng(kSeed);
  std::vector<float> mass(kShape.tokens);
  for (float& m : mass) m = std::exp(0.01f * static_cast<float>(rng() % 600));
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.name);
    const Both both(c.name, c.side, mass);
    EXPECT_EQ(both.changed(), both.expected(mass));
  }
}

TEST(Overlaid, WithoutMassTheErrorAloneDecides) {
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.name);
    const Both both(c.name, c.side);
    EXPECT_EQ(both.changed(), both.expected({}));
  }
}

TEST(Overlaid, RowsWithoutMassComeLast) {
  std::vector<float> mass(kShape.tokens, 0.0f);
  for (const uint32_t t : {3u, 60u, 127u}) mass[t] = 1e-6f;
  const Both both("mid2", Side::value, mass);
  const std::vector<uint32_t> changed = both.changed();
  for (const uint32_t t : {3u, 60u, 127u}) EXPECT_NE(std::find(changed.begin(), changed.end(), t), changed.end()) << t;
  EXPECT_EQ(changed.size(), kTop) << "places that are left go to the first rows";
}

TEST(Overlaid, ABetterRowHasATenthOfTheBasesError) {
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.name);
    const Both both(c.name, c.side);
    for (const uint32_t t : both.changed())
      EXPECT_LT(both.squared_error(both.left, t), 0.1 * both.squared_error(both.lost, t)) << "row " << t;
  }
}

// How much an error of a key weighs: by where queries look, and where the codec does not know that, by its length.
double weight(const Codec& codec, const float* error) {
  const uint32_t d = kShape.head_dim;
  float directions[kMostDirections * kShape.head_dim], floor = 1.0f;
  const uint32_t count = codec.directions(kContext.first_position, directions, floor);
  double sum = floor * std::pow(norm(error, d), 2.0);
  for (uint32_t k = 0; k < count; ++k) {
    double along = 0;
    for (uint32_t c = 0; c < d; ++c) along += double{directions[k * d + c]} * error[c];
    sum += along * along;
  }
  return sum;
}

// The share of the base's errors that does not come back from the error frame.
double left_out(const Both& both, bool exact) {
  const uint32_t d = kShape.head_dim;
  std::vector<float> used = both.lost, back(both.rows.size());
  both.better->from_error_frame(kContext, used.data(), kShape.tokens, exact, back.data());
  from_frame(both.better->frame(), back.data(), kShape.tokens, d);
  double all = 0, out = 0;
  for (uint32_t t = 0; t < kShape.tokens; ++t) {
    std::vector<float> error(d), rest(d);
    for (uint32_t c = 0; c < d; ++c) {
      const size_t i = static_cast<size_t>(t) * d + c;
      error[c] = both.rows[i] - both.from_base[i], rest[c] = error[c] - back[i];
    }
    all += weight(*both.better, error.data()), out += weight(*both.better, rest.data());
  }
  return out / all;
}

TEST(Overlaid, TheErrorFrameLeadsBack) {
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.name);
    const Both both(c.name, c.side);
    const bool whole = both.better->error_channels() == kShape.head_dim;
    for (const bool exact : {true, false}) EXPECT_LT(left_out(both, exact), whole ? 4e-4 : 0.25) << "tables are 16-bit floats";
  }
}

TEST(Overlaid, KltLeavesOutComponentsThatCarryLittle) {
  uint32_t fewer = 0;
  for (const char* name : {"klt0.5", "klt1", "klt1.5", "klt1.875", "klt4"}) {
    SCOPED_TRACE(name);
    const Both both(name, Side::key);
    EXPECT_EQ(both.better->error_channels() % 16, 0u);
    EXPECT_LE(both.better->error_channels(), kShape.head_dim);
    EXPECT_LT(left_out(both, true), 0.25);
    fewer += both.better->error_channels() < kShape.head_dim;
  }
  EXPECT_GT(fewer, 0u) << "none left any out: this test says nothing";
}

// Rows that are packed eight codes in three bytes, against the sums over them.
TEST(Overlaid, KernelsReadTheCodes) {
  std::mt19937 rng(kSeed);
  std::normal_distribution<float> normal;
  const std::string_view before = active_isa();
  for (const std::string_view isa : available_isas()) {
    ASSERT_TRUE(set_active_isa(isa));
    const Kernels* kernels = active_kernels();
    if (!kernels) continue;
    for (const uint32_t dim : {16u, 32u, 48u, 64u, 80u, 128u, 256u}) {
      for (const uint32_t count : {1u, 2u, 3u, 4u, 5u, 9u}) {
        for (const uint32_t n : {1u, 3u, 4u, 5u, 8u}) {
          // In memory that ends with the last row and begins one byte before the first.
          std::vector<std::byte> bytes(1 + n * dim * 3 / 8);
          for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
          const auto value = [&](uint32_t t, uint32_t c) {
            const uint32_t bit = 3 * (t * dim + c);
            double code = 0;
            for (uint32_t k = 0; k < 3; ++k)
              code += (std::to_integer<uint32_t>(bytes[1 + (bit + k) / 8]) >> (bit + k) % 8 & 1u) << k;
            return code - 3.5;
          };
          // Rows of scores that end where memory does, whole vectors or not; some neighbours, some apart, the last one the last.
          const uint32_t rows = n % 2 ? 37 : 32;
          std::vector<std::byte> indices, steps;
          for (uint32_t t = 0; t < n; ++t) {
            indices.push_back(static_cast<std::byte>(t + 1 < n ? 3 * t + t / 2 : rows - 1));
            steps.push_back(static_cast<std::byte>(0x70 + 3 * t));
          }
          const auto row_of = [&](uint32_t t) { return std::to_integer<uint32_t>(indices[t]); };
          const auto step = [&](uint32_t t) {
            return double{f16_to_f32(static_cast<uint16_t>(std::to_integer<uint32_t>(steps[t]) << 7))};
          };
          std::vector<float> queries(count * dim), out(count * rows, 0.25f), weights(count * rows), acc(count * dim, 0.5f);
          for (float& x : queries) x = normal(rng);
          for (float& x : weights) x = normal(rng);
          std::vector<float> turned = queries;
          to_frame(Frame::hadamard, turned.data(), count, dim);
          const BetterRows better{indices.data(), steps.data(), bytes.data() + 1, n, dim};
          const bool turns = count != 2 || n == 4;
          std::vector<float> products(count * n);
          kernels->better_products(better, (turns ? queries : turned).data(), turns ? hadamard_signs(dim) : nullptr,
                                   hadamard_run(dim), count, products.data());
          kernels->add_products(better, products.data(), count, rows, out.data(), rows);
          kernels->better_sums(better, weights.data(), rows, count, acc.data());
          const std::string of = std::string(isa) + " dim " + std::to_string(dim) + " count " + std::to_string(count);
          for (uint32_t i = 0; i < count; ++i) {
            std::vector<double> want(rows, 0.25);
            for (uint32_t t = 0; t < n; ++t) {
              for (uint32_t c = 0; c < dim; ++c) want[row_of(t)] += step(t) * double{turned[i * dim + c]} * value(t, c);
            }
            for (uint32_t t = 0; t < rows; ++t) ASSERT_NEAR(out[i * rows + t], want[t], 3e-5 * dim) << of << " n " << n;
            for (uint32_t c = 0; c < dim; ++c) {
              double sum = 0.5;
              for (uint32_t t = 0; t < n; ++t) sum += step(t) * double{weights[i * rows + row_of(t)]} * value(t, c);
              ASSERT_NEAR(acc[i * dim + c], sum, 3e-4) << of << " n " << n;
            }
          }
        }
      }
    }
  }
  set_active_isa(before);
}

TEST(Overlaid, TakesWhatItSays) {
  EXPECT_EQ(overlay_bytes(4, 64), 4u * (2 + 24));
  EXPECT_EQ(overlay_bytes(1, 80), 2u + 30);
  const Both both("rot2", Side::key);
  EXPECT_EQ(both.better->bytes(), both.base->bytes() + overlay_bytes(kTop, kShape.head_dim));
  const Both klt("klt1.5", Side::key);
  EXPECT_EQ(klt.better->bytes(), klt.base->bytes() + overlay_bytes(kTop, klt.better->error_channels()));
}

TEST(Overlaid, DamagedIndicesAndStepsAreRefused) {
  const Both both("rot2", Side::key);
  const size_t indices = both.base->bytes(), steps = indices + kTop;
  ASSERT_TRUE(both.better->validate(both.bytes).ok());
  const auto refuses = [&](size_t at, uint8_t value) {
    std::vector<std::byte> bad = both.bytes;
    bad[at] = std::byte{value};
    return both.better->validate(bad).code() == StatusCode::data_loss;
  };
  EXPECT_TRUE(refuses(indices + kTop - 1, 128)) << "past the block";
  EXPECT_TRUE(refuses(indices + 1, std::to_integer<uint8_t>(both.bytes[indices]))) << "twice";
  EXPECT_TRUE(refuses(indices, 127)) << "out of order";
  EXPECT_TRUE(refuses(steps, 0xF8)) << "infinity";
  EXPECT_TRUE(refuses(steps + 2, 0xFF)) << "not a number";
  EXPECT_FALSE(refuses(steps, 0xF7)) << "the largest step";
}

TEST(Overlaid, ABlockHasAtLeastAsManyRowsAsBetterOnes) {
  EXPECT_TRUE(make_codec(*parse_codec("rot2+top16"), Side::key, {16, 64}).ok());
  EXPECT_EQ(make_codec(*parse_codec("rot2+top17"), Side::key, {16, 64}).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace tierkv::quant
