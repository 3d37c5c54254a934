#include "deep/range_coder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tierkv::deep {
namespace {

TEST(RangeCoder, GivesBackEveryBitOfEveryProbability) {
  for (const uint32_t seed : {1u, 2u, 3u, 4u}) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    std::vector<double> odds(50);
    for (double& p : odds) p = std::pow(std::uniform_real_distribution<double>(0, 1)(rng), 6);
    std::vector<std::pair<uint32_t, bool>> wanted;
    RangeEncoder out;
    std::vector<Bit> models(odds.size());
    for (int i = 0; i < 60000; ++i) {
      const uint32_t which = rng() % odds.size();
      const bool bit = std::bernoulli_distribution(odds[which])(rng);
      wanted.emplace_back(which, bit);
      out.put(models[which], bit);
    }
    const auto bytes = out.finish();
    RangeDecoder in(bytes);
    std::vector<Bit> again(odds.size());
    for (const auto& [which, bit] : wanted) ASSERT_EQ(in.get(again[which]), bit);
    EXPECT_FALSE(in.overrun());
  }
}

TEST(RangeCoder, ComesNearTheEntropy) {
  std::mt19937 rng(7);
  for (const double p : {0.5, 0.1, 0.01, 0.001}) {
    RangeEncoder out;
    Bit model;
    const int n = 200000;
    int ones = 0;
    for (int i = 0; i < n; ++i) {
      const bool bit = std::bernoulli_distribution(p)(rng);
      ones += bit;
      out.put(model, bit);
    }
    const double real = static_cast<double>(ones) / n;
    const double entropy = -(real * std::log2(real) + (1 - real) * std::log2(1 - real));
    EXPECT_LT(8.0 * static_cast<double>(out.finish().size()), 1.03 * n * entropy + 200) << p;
  }
}

TEST(RangeCoder, CarriesThroughLongRunsOfOnes) {
  // Ones of a nearly certain zero push the low end up again and again; the carry then has to walk back through bytes of 0xFF.
  for (const uint32_t seed : {11u, 12u, 13u}) {
    std::mt19937 rng(seed);
    std::vector<uint32_t> values(4000);
    for (uint32_t& v : values) v = rng() % 3 ? 0xFFFFFFFFu : rng();
    RangeEncoder out;
    Bit rare = Bit::expecting(65530, 1000);
    for (const uint32_t v : values) {
      out.put_plain(v, 32);
      out.put(rare, v & 1u);
    }
    const auto bytes = out.finish();
    RangeDecoder in(bytes);
    Bit again = Bit::expecting(65530, 1000);
    for (const uint32_t v : values) {
      ASSERT_EQ(in.get_plain(32), v);
      ASSERT_EQ(in.get(again), static_cast<bool>(v & 1u));
    }
    EXPECT_FALSE(in.overrun());
  }
}

TEST(RangeCoder, NeverClipsALevel) {
  std::mt19937 rng(21);
  std::vector<int32_t> levels = {1, -1, 2, -2, 3, 4, 7, 8, -8, 1 << 20, -(1 << 29), (1 << 30) - 1, -((1 << 30) - 1)};
  for (int i = 0; i < 20000; ++i) {
    const int32_t magnitude = 1 + static_cast<int32_t>(rng() >> (2 + rng() % 30)) % ((1 << 30) - 1);
    levels.push_back(rng() & 1u ? magnitude : -magnitude);
  }
  RangeEncoder out;
  LevelModel model;
  for (const int32_t level : levels) put_level(out, model, level);
  const auto bytes = out.finish();
  RangeDecoder in(bytes);
  LevelModel again;
  for (const int32_t level : levels) ASSERT_EQ(get_level(in, again), level);
  EXPECT_FALSE(in.overrun());
}

TEST(RangeCoder, PricesAreWhatBitsCost) {
  std::mt19937 rng(5);
  RangeEncoder out;
  LevelModel model;
  double expected = 0.0;
  for (int i = 0; i < 50000; ++i) {
    const int32_t level = 1 + static_cast<int32_t>(std::geometric_distribution<int>(0.3)(rng));
    expected += price_level(model, level) / 256.0;
    put_level(out, model, level);
  }
  EXPECT_NEAR(8.0 * static_cast<double>(out.finish().size()), expected, 0.01 * expected);
}

TEST(RangeCoder, KnowsWhenItReadPastTheEnd) {
  RangeEncoder out;
  for (int i = 0; i < 1000; ++i) out.put_plain(static_cast<uint32_t>(i) * 2654435761u, 32);
  auto bytes = out.finish();
  bytes.resize(bytes.size() / 2);
  RangeDecoder in(bytes);
  for (int i = 0; i < 1000; ++i) (void)in.get_plain(32);
  EXPECT_TRUE(in.overrun());
}

TEST(RangeCoder, SurvivesAnyBytes) {
  std::mt19937 rng(99);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::byte> bytes(rng() % 300);
    for (std::byte& b : bytes) b = static_cast<std::byte>(round % 3 ? rng() : 0xFFu);
    RangeDecoder in(bytes);
    LevelModel model;
    Bit zero;
    for (int i = 0; i < 2000; ++i) {
      if (!in.get(zero)) continue;
      const int32_t level = get_level(in, model);
      ASSERT_NE(level, 0);
      ASSERT_LT(std::abs(level), 1 << 30);
    }
  }
}

}  // namespace
}  // namespace tierkv::deep
