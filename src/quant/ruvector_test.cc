// The quantizer tests of ruvector-attention, with its data and tolerances.
#include "quant/ruvector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "quant/registry.h"

namespace tierkv::quant {
namespace {

TEST(Ruvector, QuantizeRoundtrip4Bit) {
  const std::vector<float> data = {0.0f, 0.5f, 1.0f, -1.0f, 0.25f, -0.5f, 0.75f, -0.25f};
  const std::vector<float> restored = dequantize(*quantize_asymmetric(data, 2, 4));
  for (size_t i = 0; i < data.size(); ++i) EXPECT_LT(std::fabs(data[i] - restored[i]), 0.15f);
}

TEST(Ruvector, QuantizeRoundtrip3Bit) {
  const std::vector<float> data = {0.0f, 0.5f, 1.0f, -1.0f, 0.3f, -0.7f, 0.8f, -0.2f};
  const std::vector<float> restored = dequantize(*quantize_asymmetric(data, 2, 3));
  for (size_t i = 0; i < data.size(); ++i) EXPECT_LT(std::fabs(data[i] - restored[i]), 0.35f);
}

TEST(Ruvector, SymmetricQuantizeRoundtrip) {
  const std::vector<float> data = {0.0f, 0.5f, -0.5f, 1.0f, -1.0f};
  const std::vector<float> restored = dequantize(*quantize_symmetric(data, 4));
  for (size_t i = 0; i < data.size(); ++i) EXPECT_LT(std::fabs(data[i] - restored[i]), 0.2f);
}

TEST(Ruvector, BankersRounding) {
  EXPECT_EQ(round_to_nearest_even(2.5f), 2.0f);
  EXPECT_EQ(round_to_nearest_even(3.5f), 4.0f);
  EXPECT_EQ(round_to_nearest_even(4.5f), 4.0f);
  EXPECT_EQ(round_to_nearest_even(1.3f), 1.0f);
  EXPECT_EQ(round_to_nearest_even(1.7f), 2.0f);
  EXPECT_EQ(round_to_nearest_even(-2.5f), -2.0f);
  EXPECT_EQ(round_to_nearest_even(-3.5f), -4.0f);
  EXPECT_EQ(round_to_nearest_even(-0.5f), 0.0f);
}

TEST(Ruvector, CodecRoundsHalfToEven) {
  // A row with range 0..3 at 2 bits has scale 1: 0.5 and 2.5 are ties, and go to 0 and 2; 1.5 goes to 2.
  std::vector<float> rows(16 * 32);
  const float pattern[] = {0.0f, 3.0f, 0.5f, 1.5f, 2.5f, 1.0f};
  const float want[] = {0.0f, 3.0f, 0.0f, 2.0f, 2.0f, 1.0f};
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = pattern[i % 32 % 6];
  for (Side side : {Side::key, Side::value}) {
    const auto codec = make_codec(*parse_codec("asym2"), side, {16, 32});
    std::vector<std::byte> bytes((*codec)->bytes());
    ASSERT_TRUE((*codec)->encode(rows.data(), {}, bytes).ok());
    std::vector<float> back(rows.size());
    (*codec)->decode(bytes, {}, 0, 16, back.data());
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(back[i], want[i % 32 % 6]);
  }
}

TEST(Ruvector, ErrorFallsWithEveryBit) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  std::vector<float> data(256);
  for (float& x : data) x = normal(rng);
  double previous[2] = {1e9, 1e9};
  for (uint32_t bits = 2; bits <= 8; ++bits) {
    const auto asym = quantize_asymmetric(data, 4, bits);
    const auto sym = quantize_symmetric(data, bits);
    const std::vector<float> back[2] = {dequantize(*asym), dequantize(*sym)};
    for (int k = 0; k < 2; ++k) {
      double worst = 0;
      for (size_t i = 0; i < data.size(); ++i) {
        const float scale = k == 0 ? asym->scales[i / 64] : sym->scale;
        const double e = std::fabs(back[k][i] - data[i]);
        ASSERT_LE(e, scale / 2 + 1e-5);
        worst = std::max(worst, e);
      }
      EXPECT_LT(worst, previous[k]);
      previous[k] = worst;
    }
  }
}

TEST(Ruvector, CodecsStoreWhatTheFunctionsCompute) {
  std::mt19937 rng(6);
  std::normal_distribution<float> normal;
  std::vector<float> rows(16 * 64), back(rows.size());
  for (float& x : rows) x = normal(rng);
  for (uint32_t bits = 2; bits <= 8; ++bits) {
    for (const char* name : {"asym", "sym"}) {
      const auto codec = make_codec(*parse_codec(name + std::to_string(bits)), Side::key, {16, 64});
      std::vector<std::byte> bytes((*codec)->bytes());
      ASSERT_TRUE((*codec)->encode(rows.data(), {}, bytes).ok());
      (*codec)->decode(bytes, {}, 0, 16, back.data());
      for (uint32_t t = 0; t < 16; ++t) {
        const std::span<const float> row(&rows[t * 64], 64);
        const std::vector<float> want =
            name[0] == 'a' ? dequantize(*quantize_asymmetric(row, 1, bits)) : dequantize(*quantize_symmetric(row, bits));
        for (uint32_t c = 0; c < 64; ++c) ASSERT_NEAR(back[t * 64 + c], want[c], 1e-5) << name << bits;
      }
    }
  }
}

TEST(Ruvector, ConstantHeadIsExact) {
  for (float x : {0.42f, -0.42f, 1000.5f, 0.0f}) {
    for (float y : dequantize(*quantize_asymmetric(std::vector<float>(8, x), 2, 3))) EXPECT_EQ(y, x);
  }
}

TEST(Ruvector, BadInputIsRefused) {
  const std::vector<float> data(8, 1.0f);
  for (uint32_t bits : {0u, 1u, 9u}) {
    EXPECT_FALSE(quantize_asymmetric(data, 2, bits).ok());
    EXPECT_FALSE(quantize_symmetric(data, bits).ok());
  }
  EXPECT_FALSE(quantize_asymmetric(data, 3, 4).ok());
  EXPECT_FALSE(quantize_asymmetric(data, 0, 4).ok());
  EXPECT_FALSE(quantize_symmetric({}, 4).ok());
  const std::vector<float> bad = {1.0f, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_FALSE(quantize_symmetric(bad, 4).ok());
}

}  // namespace
}  // namespace tierkv::quant
