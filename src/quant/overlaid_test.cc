#include "quant/overlaid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "quant/contract_testing.h"
#include "quant/frame.h"

namespace tierkv::quant {
namespace {

using namespace tierkv::quant::testing;

constexpr BlockShape kShape{128, 64};
constexpr uint32_t kTop = 5;

// A codec with better rows and the one below it, and what both make of the same rows.
struct Both {
  std::unique_ptr<Codec> base, better;
  std::vector<float> rows, from_base, from_better;
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
    EXPECT_TRUE(better->encode(rows.data(), ctx, bytes).ok());
    EXPECT_EQ(std::memcmp(bytes.data(), plain.data(), plain.size()), 0) << "the base's bytes come first";
    from_base.resize(rows.size());
    from_better.resize(rows.size());
    base->decode(plain, kContext, 0, kShape.tokens, from_base.data());
    better->decode(bytes, kContext, 0, kShape.tokens, from_better.data());
  }

  // As the codec counts errors.
  double squared_error(const std::vector<float>& decoded, uint32_t t) const {
    std::vector<float> lost(kShape.head_dim);
    for (uint32_t c = 0; c < kShape.head_dim; ++c) {
      const size_t i = static_cast<size_t>(t) * kShape.head_dim + c;
      lost[c] = rows[i] - decoded[i];
    }
    better->to_error_frame(kContext, lost.data(), 1);
    return std::pow(norm(lost.data(), lost.size()), 2.0);
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
    const auto worth = [&](uint32_t t) { return squared_error(from_base, t) * (mass.empty() ? 1.0 : double{mass[t]}); };
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
      EXPECT_LT(both.squared_error(both.from_better, t), 0.1 * both.squared_error(both.from_base, t)) << "row " << t;
  }
}

TEST(Overlaid, TheErrorFrameLeadsBack) {
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.name);
    const Both both(c.name, c.side);
    std::vector<float> there = both.rows;
    both.better->to_error_frame(kContext, there.data(), kShape.tokens);
    for (const bool exact : {true, false}) {
      std::vector<float> back = there;
      both.better->from_error_frame(kContext, back.data(), kShape.tokens, exact);
      from_frame(both.better->frame(), back.data(), kShape.tokens, kShape.head_dim);
      double off = 0;
      for (size_t i = 0; i < back.size(); ++i) off += std::pow(double{back[i]} - both.rows[i], 2);
      EXPECT_LT(std::sqrt(off), 0.02 * norm(back.data(), back.size())) << "tables are 16-bit floats";
    }
  }
}

TEST(Overlaid, TakesWhatItSays) {
  EXPECT_EQ(overlay_bytes(4, 64), 4u * (2 + 24));
  EXPECT_EQ(overlay_bytes(1, 80), 2u + 30);
  const Both both("rot2", Side::key);
  EXPECT_EQ(both.better->bytes(), both.base->bytes() + overlay_bytes(kTop, kShape.head_dim));
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
