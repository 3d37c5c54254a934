#include "plan/thresholds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>

#include "base/file.h"
#include "base/folder_testing.h"
#include "tierkv/config.h"

namespace tierkv::plan {
namespace {

namespace fs = std::filesystem;

class ThresholdsFile : public testing::Test {
 protected:
  void write(std::string_view text) { ASSERT_TRUE(write_file_atomic(path_, text).ok()); }
  const TestFolder folder_;
  const fs::path dir_ = folder_.path();
  const std::string path_ = folder_.file("t.json");
};

TEST_F(ThresholdsFile, RoundTripsUnderTheKeysOfDocument000) {
  const std::vector<LayerThresholds> saved = {{64, 448, 2}, {77, kAll, 3}, {kAll, 0, 16}};
  ASSERT_TRUE(save_thresholds_file(path_, "llama3:8b", saved).ok());
  EXPECT_EQ(load_thresholds_file(path_, "llama3:8b").value(), saved);
  EXPECT_NE(read_text_file(path_, 1 << 20).value().find("\"kv_threshold:llama3:8b:1\""), std::string::npos);
}

TEST_F(ThresholdsFile, SavingOneModelKeepsTheOthersAndReplacesItsOwn) {
  ASSERT_TRUE(save_thresholds_file(path_, "a", std::vector<LayerThresholds>{{1, 2, 3}}).ok());
  ASSERT_TRUE(save_thresholds_file(path_, "b", std::vector<LayerThresholds>{{4, 5, 4}, {6, 7, 2}}).ok());
  ASSERT_TRUE(save_thresholds_file(path_, "b", std::vector<LayerThresholds>{{8, 9, 4}}).ok());
  EXPECT_EQ(load_thresholds_file(path_, "a").value(), (std::vector<LayerThresholds>{{1, 2, 3}}));
  EXPECT_EQ(load_thresholds_file(path_, "b").value(), (std::vector<LayerThresholds>{{8, 9, 4}}));
}

TEST_F(ThresholdsFile, ManyLayersKeepTheirOrder) {
  std::vector<LayerThresholds> saved;
  for (uint32_t i = 0; i < 126; ++i) saved.push_back({i, i + 1, 2 + i % 3});
  ASSERT_TRUE(save_thresholds_file(path_, "", saved).ok());
  EXPECT_EQ(load_thresholds_file(path_, "").value(), saved);
}

TEST_F(ThresholdsFile, AForeignFileIsNeverOverwritten) {
  write("{\"hot\": 64}");
  const Status status = save_thresholds_file(path_, "a", std::vector<LayerThresholds>{{1, 2, 3}});
  EXPECT_EQ(status.code(), StatusCode::failed_precondition);
  EXPECT_EQ(read_text_file(path_, 100).value(), "{\"hot\": 64}");
}

TEST_F(ThresholdsFile, MissingThingsAreNamed) {
  EXPECT_EQ(load_thresholds_file(path_, "a").status().code(), StatusCode::not_found);
  ASSERT_TRUE(save_thresholds_file(path_, "a", std::vector<LayerThresholds>{{1, 2, 3}}).ok());
  const auto other = load_thresholds_file(path_, "b");
  EXPECT_EQ(other.status().code(), StatusCode::not_found);
  EXPECT_NE(other.status().message().find("it holds 'a'"), std::string::npos) << other.status().message();
}

TEST_F(ThresholdsFile, DamageIsRefusedWithItsLine) {
  const std::string head = "{\n\"format\": \"tierkv thresholds\",\n\"version\": 1,\n";
  const auto refused = [&](const std::string& body, StatusCode code, const std::string& text) {
    write(head + body);
    const auto loaded = load_thresholds_file(path_, "m");
    EXPECT_EQ(loaded.status().code(), code) << body;
    EXPECT_NE(loaded.status().message().find(text), std::string::npos) << loaded.status().message();
  };
  refused("\"kv_threshold:m:0\": {\"hot\": 1, \"warm\": 2}}", StatusCode::data_loss, ":4: ");
  refused("\"kv_threshold:m:0\": {\"hot\": -1, \"warm\": 2, \"archive_bits\": 2}}", StatusCode::data_loss, "'hot' must be");
  refused("\"kv_threshold:m:0\": {\"hot\": 1, \"warm\": 2, \"archive_bits\": 17}}", StatusCode::data_loss, "1..16");
  refused("\"kv_threshold:m:0\": {\"hot\": 1, \"hot\": 1, \"warm\": 2, \"archive_bits\": 2}}", StatusCode::data_loss, "once each");
  refused("\"kv_threshold:m:1\": {\"hot\": 1, \"warm\": 2, \"archive_bits\": 2}}", StatusCode::data_loss, "no entry for layer 0");
  refused("\"kv_threshold:m:x\": {}}", StatusCode::data_loss, "unknown key");
  refused("\"kv_threshold:m:0\": ", StatusCode::data_loss, "not JSON");
  write("{\"format\": \"tierkv thresholds\", \"version\": 2}");
  EXPECT_EQ(load_thresholds_file(path_, "m").status().code(), StatusCode::unsupported);
  write("{\"version\": 1}");
  EXPECT_EQ(load_thresholds_file(path_, "m").status().code(), StatusCode::data_loss);
}

TEST(ThresholdRule, StepsOfDocument000) {
  EXPECT_EQ(more_precise({64, 448, 2}), (LayerThresholds{77, 448, 3}));  // 76.8 up
  EXPECT_EQ(more_precise({10, 0, 4}), (LayerThresholds{12, 0, 4}));      // exactly 12, bits at most 4
  EXPECT_EQ(more_precise({4000, 0, 3}), (LayerThresholds{4096, 0, 4}));
  EXPECT_EQ(more_compact({100, 448, 4}), (LayerThresholds{90, 448, 3}));
  EXPECT_EQ(more_compact({33, 448, 2}), (LayerThresholds{32, 448, 2}));
}

TEST(ThresholdRule, ValuesOutsideItsBoundsAreLeftAlone) {
  EXPECT_EQ(more_precise({kAll, 0, 16}), (LayerThresholds{kAll, 0, 16}));
  EXPECT_EQ(more_compact({kAll, 0, 16}), (LayerThresholds{kAll, 0, 16}));
  EXPECT_EQ(more_precise({8000, 0, 8}), (LayerThresholds{8000, 0, 8}));
  EXPECT_EQ(more_compact({16, 0, 1}), (LayerThresholds{16, 0, 1}));
}

TEST(QualityTracker, ComfortIsReachable) {
  EXPECT_DOUBLE_EQ(QualityTracker(0.97).comfort(), 0.985);
  EXPECT_DOUBLE_EQ(QualityTracker(0.5).comfort(), 0.55);
  for (double target = 0.01; target < 1.0; target += 0.01) EXPECT_LT(QualityTracker(target).comfort(), 1.0);
}

TEST(QualityTracker, CountsAndMeansRoll) {
  QualityTracker q(0.5);
  std::vector<LayerThresholds> none;
  for (int i = 0; i < 1500; ++i) ASSERT_TRUE(q.add(i < 1400 ? 0.0 : 1.0, none).ok());
  const QualityMetrics m = q.metrics();
  EXPECT_EQ(m.samples, 1500u);
  EXPECT_NEAR(m.mean, 0.1, 1e-12);
  EXPECT_NEAR(m.recent_mean, 1.0, 1e-12);
  EXPECT_EQ(m.target, 0.5);
  EXPECT_EQ(m.adaptations, 0u);
  EXPECT_EQ(QualityTracker().metrics().mean, 0.0);
}

TEST(QualityTracker, RefusesScoresThatAreNone) {
  QualityTracker q;
  std::vector<LayerThresholds> t = {{64, 448, 2}};
  for (const double bad : {std::nan(""), -0.1, HUGE_VAL}) EXPECT_EQ(q.add(bad, t).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(q.metrics().samples, 0u);
  ASSERT_TRUE(q.add(1.5, t).ok());
  EXPECT_EQ(q.metrics().mean, 1.0);
}

TEST(QualityTracker, MovesOnlyAfterEnoughSamples) {
  QualityTracker q(0.97);
  std::vector<LayerThresholds> t = {{64, 448, 2}, {128, 0, 3}};
  for (int i = 0; i < 15; ++i) EXPECT_FALSE(q.add(0.5, t).value());
  EXPECT_TRUE(q.add(0.5, t).value());
  EXPECT_EQ(t, (std::vector<LayerThresholds>{{77, 448, 3}, {154, 0, 4}}));
  for (int i = 0; i < 15; ++i) EXPECT_FALSE(q.add(0.5, t).value());
  EXPECT_TRUE(q.add(0.5, t).value());
  EXPECT_EQ(q.metrics().adaptations, 2u);
}

TEST(QualityTracker, RestsBetweenTargetAndComfort) {
  QualityTracker q(0.97);
  std::vector<LayerThresholds> t = {{64, 448, 3}};
  for (int i = 0; i < 500; ++i) EXPECT_FALSE(q.add(0.975, t).value());
}

// Feeds a simulated quality and returns the sample after which nothing changed any more.
uint64_t settled_after(const std::function<double(const LayerThresholds&)>& quality, LayerThresholds start, double noise,
                       uint64_t samples, LayerThresholds* end = nullptr) {
  std::mt19937 rng(11);
  std::normal_distribution<double> wobble(0.0, noise);
  QualityTracker q(0.97);
  std::vector<LayerThresholds> t = {start};
  uint64_t last = 0;
  for (uint64_t i = 1; i <= samples; ++i)
    if (q.add(std::clamp(quality(t[0]) + wobble(rng), 0.0, 1.0), t).value()) last = i;
  if (end) *end = t[0];
  return last;
}

TEST(QualityTracker, SettlesWithinAHundredSamplesOnASmoothCurve) {
  const auto quality = [](const LayerThresholds& t) {
    return 1.0 - 0.4 * std::pow(2.0, -1.5 * t.archive_bits) - 1.5 / (20.0 + t.hot);
  };
  for (const uint32_t hot : {32u, 64u, 200u, 400u})
    for (const uint32_t bits : {2u, 3u, 4u})
      for (const double noise : {0.0, 0.003}) {
        LayerThresholds end;
        EXPECT_LT(settled_after(quality, {hot, 448, bits}, noise, 900, &end), 100u)
            << hot << " hot, " << bits << " bits, noise " << noise;
        EXPECT_GE(quality(end), 0.97 - 0.003);
      }
}

TEST(QualityTracker, DoesNotSwingWhereNoSettingFits) {
  const auto cliff = [](const LayerThresholds& t) { return t.archive_bits >= 3 ? 0.999 : 0.90; };
  LayerThresholds end;
  EXPECT_LT(settled_after(cliff, {64, 448, 3}, 0.0, 900, &end), 100u);
  EXPECT_GE(end.archive_bits, 3u);
}

TEST(QualityTracker, TriesAgainToShrinkWhenTheHistoryHasRolledOver) {
  QualityTracker q(0.97);
  std::vector<LayerThresholds> t = {{64, 448, 3}};
  const auto feed = [&](double score, int n) {
    for (int i = 0; i < n; ++i) ASSERT_TRUE(q.add(score, t).ok());
  };
  feed(0.999, 16);  // shrinks
  feed(0.90, 16);   // takes it back
  const auto settled = t;
  feed(0.999, 999);
  EXPECT_EQ(t, settled);
  feed(0.999, 2);
  EXPECT_NE(t, settled);
}

}  // namespace
}  // namespace tierkv::plan
