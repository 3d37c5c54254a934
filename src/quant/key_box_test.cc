// The box of a block's keys: it holds them, in every kernel, and says no score is above what it allows.
#include "quant/key_box.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "quant/isa.h"

namespace tierkv::quant {
namespace {

class KeyBox : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override { ASSERT_TRUE(set_active_isa(GetParam())); }
  void TearDown() override { set_active_isa(before_); }
  const std::string_view before_ = active_isa();
  std::mt19937 rng{11};
};
INSTANTIATE_TEST_SUITE_P(All, KeyBox, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(KeyBox, NoScoreIsAboveItsBound) {
  std::normal_distribution<float> normal;
  for (const uint32_t d : {32u, 48u, 64u, 128u, 256u}) {
    for (int round = 0; round < 40; ++round) {
      const uint32_t rows = 1 + rng() % 60, count = 1 + rng() % 9;
      std::vector<float> keys(rows * d), queries(count * d);
      const float size = std::exp(6.0f * normal(rng));
      std::vector<float> mean(d), width(d);
      for (uint32_t c = 0; c < d; ++c) mean[c] = size * std::exp(2.0f * normal(rng)) * normal(rng), width[c] = size * normal(rng);
      for (uint32_t i = 0; i < rows * d; ++i) keys[i] = mean[i % d] + width[i % d] * normal(rng);
      for (float& q : queries) q = normal(rng);
      std::vector<std::byte> box(box_bytes(d));
      make_box(keys.data(), rows, d, box.data());
      ASSERT_TRUE(has_box(box.data(), d));
      std::vector<BoxScore> found(count);
      box_scores(box.data(), d, queries.data(), count, found.data());
      for (uint32_t i = 0; i < count; ++i) {
        double norm = 0.0;
        for (uint32_t t = 0; t < rows; ++t) {
          double score = 0.0;
          norm = 0.0;
          for (uint32_t c = 0; c < d; ++c) {
            const double term = static_cast<double>(queries[i * d + c]) * keys[t * d + c];
            score += term, norm += std::fabs(term);
          }
          EXPECT_LE(score, static_cast<double>(found[i].middle) + found[i].reach + 1e-5 * norm) << d;
          EXPECT_GE(score, static_cast<double>(found[i].middle) - found[i].reach - 1e-5 * norm) << d;
        }
        EXPECT_LE(found[i].spread, found[i].reach * 1.0001f);
        // Not much wider than it has to be: of a single row, rounding alone.
        if (rows == 1) {
          EXPECT_LE(found[i].reach, 0.3 * norm + 1e-3 * size * d);
        }
      }
    }
  }
}

TEST_P(KeyBox, ScoresAreThoseOfPlainCode) {
  std::normal_distribution<float> normal;
  const uint32_t d = 80, count = 7;
  std::vector<float> keys(20 * d), queries(count * d);
  for (float& x : keys) x = normal(rng);
  for (float& x : queries) x = normal(rng);
  std::vector<std::byte> box(box_bytes(d));
  make_box(keys.data(), 20, d, box.data());
  std::vector<BoxScore> found(count), plain(count);
  box_scores(box.data(), d, queries.data(), count, found.data());
  ASSERT_TRUE(set_active_isa("scalar"));
  box_scores(box.data(), d, queries.data(), count, plain.data());
  for (uint32_t i = 0; i < count; ++i) {
    EXPECT_NEAR(found[i].middle, plain[i].middle, 1e-4);
    EXPECT_NEAR(found[i].reach, plain[i].reach, 1e-3);
    EXPECT_NEAR(found[i].spread, plain[i].spread, 1e-3);
  }
}

TEST_P(KeyBox, TheEndsOfTheRange) {
  const uint32_t d = 32;
  std::vector<std::byte> box(box_bytes(d));
  std::vector<float> keys(2 * d, 0.0f), query(d, 1.0f);
  BoxScore found;
  make_box(keys.data(), 2, d, box.data());
  ASSERT_TRUE(has_box(box.data(), d));
  box_scores(box.data(), d, query.data(), 1, &found);
  EXPECT_EQ(found.middle, 0.0f);
  EXPECT_EQ(found.reach, 0.0f);
  make_box(keys.data(), 0, d, box.data());
  EXPECT_FALSE(has_box(box.data(), d));
  keys[5] = std::numeric_limits<float>::infinity();
  make_box(keys.data(), 2, d, box.data());
  EXPECT_FALSE(has_box(box.data(), d));
  keys[5] = 3e38f, keys[d + 5] = -3e38f;
  make_box(keys.data(), 2, d, box.data());
  ASSERT_TRUE(has_box(box.data(), d));
  query.assign(d, 0.0f);
  query[5] = 0.5f;
  box_scores(box.data(), d, query.data(), 1, &found);
  EXPECT_GE(found.middle + found.reach, 1.5e38f);
}

}  // namespace
}  // namespace tierkv::quant
