// Deep archives inside snapshots: what goes in comes back, near enough, in the cache's own codecs, and nothing else changes.
#include <gtest/gtest.h>

#include "base/folder_testing.h"
#include "snapshot/deep_testing.h"
#include "tierkv/snapshot.h"

namespace tierkv::snapshot {
namespace {

using namespace tierkv::snapshot::testing;

TEST(DeepSnapshot, ComesBackNearlyTheSameAndTheRestExactly) {
  Filled f = filled("fp16,sinks=4", 1000);
  DeepReport report;
  const auto bytes = f.cache->freeze(f.seq, at_quality(0.995), &report);
  ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
  EXPECT_EQ(report.first_position, 4u);
  EXPECT_EQ(report.tokens, 448u);  // whole blocks of 64, all but the newest 512
  EXPECT_TRUE(report.note.empty()) << report.note;
  EXPECT_GT(report.ratio, 2.0);
  const auto back = f.cache->unfreeze(*bytes);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(f.cache->length(*back).value(), 1000u);
  ASSERT_TRUE(f.cache->verify(*back).ok());
  for (uint32_t l = 0; l < made_up::kLayers; ++l) {
    EXPECT_EQ(f.cache->positions(*back, l, 1).value(), f.cache->positions(f.seq, l, 1).value());
    const auto coded = difference(rows_of(*f.cache, f.seq, l, 4, 448), rows_of(*f.cache, *back, l, 4, 448));
    EXPECT_GT(coded, 0.0);
    EXPECT_LT(coded, 0.05);
    EXPECT_EQ(rows_of(*f.cache, f.seq, l, 0, 4), rows_of(*f.cache, *back, l, 0, 4));
    EXPECT_EQ(rows_of(*f.cache, f.seq, l, 452, 548), rows_of(*f.cache, *back, l, 452, 548));
  }
}

TEST(DeepSnapshot, LoadsIntoTheCachesOwnArchiveCodecAndGoesOn) {
  Filled f = filled("hot=32,warm=64,archive=rot4,sinks=4", 700);
  DeepOptions options;
  options.ratio = 10.0;
  DeepReport report;
  const auto bytes = f.cache->freeze(f.seq, options, &report);
  ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
  EXPECT_NEAR(report.ratio, 10.0, 0.2);
  EXPECT_LT(bytes->size(), frozen(*f.cache, f.seq).size());
  const auto info = inspect_snapshot(std::span<const std::byte>(*bytes));
  ASSERT_TRUE(info.ok()) << info.status().to_string();
  EXPECT_EQ(info->deep_tokens, report.tokens);
  EXPECT_EQ(info->length, 700u);
  EXPECT_EQ((*info)[Tier::archive].tokens, 0u);

  const auto back = f.cache->unfreeze(*bytes);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  const MemoryStats before = f.cache->memory_usage(f.seq).value(), after = f.cache->memory_usage(*back).value();
  EXPECT_EQ(before[Tier::archive].tokens, after[Tier::archive].tokens);
  EXPECT_EQ(before[Tier::archive].payload_bytes, after[Tier::archive].payload_bytes);
  std::mt19937 rng(3);
  std::vector<float> out;
  append(*f.cache, *back, rng, 200);
  attend(*f.cache, *back, rng, 3, out);
  EXPECT_TRUE(f.cache->truncate(*back, 300).ok());
  attend(*f.cache, *back, rng, 3, out);
  for (const float x : out) ASSERT_TRUE(std::isfinite(x));
}

TEST(DeepSnapshot, LeavesOutWhatItIsTold) {
  Filled f = filled("fp16,sinks=4", 900);
  DeepOptions options = at_quality(0.97);
  options.keep_recent = 100;
  options.first_position = 300;
  DeepReport report;
  ASSERT_TRUE(f.cache->freeze(f.seq, options, &report).ok());
  EXPECT_EQ(report.first_position, 4u + 5 * 64);
  EXPECT_EQ(report.first_position + report.tokens, 4u + 12 * 64);
}

TEST(DeepSnapshot, SaysWhyNothingWasCoded) {
  Filled young = filled("fp16,sinks=4", 300);
  DeepReport report;
  auto bytes = young.cache->freeze(young.seq, at_quality(0.97), &report);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(report.tokens, 0u);
  EXPECT_NE(report.note.find("nothing"), std::string::npos) << report.note;
  EXPECT_EQ(*bytes, frozen(*young.cache, young.seq));  // an ordinary snapshot

  Filled evicting = filled("fp16,sinks=4,evict=h2o", 1000);
  bytes = evicting.cache->freeze(evicting.seq, at_quality(0.97), &report);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(report.tokens, 0u);
  EXPECT_NE(report.note.find("eviction"), std::string::npos) << report.note;
}

TEST(DeepSnapshot, NeedsItsCalibration) {
  Filled f = filled("fp16,sinks=4", 900);
  const auto bytes = f.cache->freeze(f.seq, at_quality(0.97));
  ASSERT_TRUE(bytes.ok());
  Filled without = filled("fp16,sinks=4", 10, nullptr);
  EXPECT_EQ(without.cache->freeze(without.seq, at_quality(0.97)).status().code(), StatusCode::failed_precondition);
  EXPECT_EQ(without.cache->unfreeze(*bytes).status().code(), StatusCode::failed_precondition);
  Filled other = filled("fp16,sinks=4", 10, calibration(8));
  const MemoryStats before = other.cache->memory_usage();
  const auto refused = other.cache->unfreeze(*bytes);
  EXPECT_EQ(refused.status().code(), StatusCode::failed_precondition) << refused.status().to_string();
  EXPECT_EQ(other.cache->sequences().size(), 1u);
  EXPECT_EQ(other.cache->memory_usage().total_bytes, before.total_bytes);
}

TEST(DeepSnapshot, RefusesDamageAndLeavesTheCacheAlone) {
  Filled f = filled("hot=32,warm=64,archive=rot4,sinks=4", 400);
  DeepOptions options;
  options.ratio = 24.0;
  const Bytes good = f.cache->freeze(f.seq, options).value();
  const MemoryStats before = f.cache->memory_usage();
  std::mt19937 rng(8);
  for (int i = 0; i < 150; ++i) {
    Bytes bad = good;
    const size_t at = rng() % bad.size();
    bad[at] ^= static_cast<std::byte>(1u << (rng() % 8));
    ASSERT_FALSE(f.cache->unfreeze(bad).ok()) << at;
    // With the outer checksum made right the parts' own still see it, or what it says contradicts itself.
    reseal(bad);
    const auto loaded = f.cache->unfreeze(bad);
    if (loaded.ok()) {
      ASSERT_TRUE(f.cache->remove(*loaded).ok());
    }
  }
  EXPECT_EQ(f.cache->sequences().size(), 1u);
  for (size_t cut = 1; cut < good.size(); cut += good.size() / 50) {
    Bytes bad(good.begin(), good.end() - static_cast<ptrdiff_t>(cut));
    ASSERT_FALSE(f.cache->unfreeze(bad).ok());
  }
  ASSERT_TRUE(f.cache->flush().ok());
  EXPECT_EQ(f.cache->memory_usage().tier[3].bytes(), before.tier[3].bytes());
}

TEST(DeepSnapshot, RefusesWhenThereIsNoRoom) {
  Filled f = filled("fp16,sinks=4", 1000);
  const auto bytes = f.cache->freeze(f.seq, at_quality(0.95)).value();
  CacheConfig small = config_of("fp16,sinks=4");
  small.byte_budget = f.cache->memory_usage().total_bytes / 2;
  auto cache = AdaptiveKVCache::create(small, calibration());
  ASSERT_TRUE(cache.ok()) << cache.status().to_string();
  EXPECT_EQ((*cache)->unfreeze(bytes).status().code(), StatusCode::resource_exhausted);
  EXPECT_TRUE((*cache)->sequences().empty());
}

TEST(DeepSnapshot, IsTheSameFromACalibrationFile) {
  const TestFolder folder;
  const std::string path = folder.file("deep.tkc");
  const CalibrationPtr solved = calibration();
  ASSERT_TRUE(solved->save(path).ok());
  auto loaded = load_calibration(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_EQ((*loaded)->id(), solved->id());
  EXPECT_EQ((*loaded)->deep, nullptr);  // until asked for
  EXPECT_LT((*loaded)->bytes() * 2, solved->bytes());
  Filled f = filled("fp16,sinks=4", 800, solved);
  const auto bytes = f.cache->freeze(f.seq, at_quality(0.97)).value();
  Filled g = filled("fp16,sinks=4", 10, *loaded);
  const auto back = g.cache->unfreeze(bytes);
  EXPECT_TRUE(back.ok()) << back.status().to_string();
  std::remove(path.c_str());
  EXPECT_FALSE(g.cache->freeze(*back, at_quality(0.97)).ok());  // the file is gone, and says so
}

}  // namespace
}  // namespace tierkv::snapshot
