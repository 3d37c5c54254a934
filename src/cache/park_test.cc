// Idle sequences: packed under their own name, refused until they wake, back in their tiers, and never lost on the way.
#include <gtest/gtest.h>

#include <cstdio>

#include "base/folder_testing.h"
#include "cache/park_testing.h"
#include "tierkv/snapshot.h"

namespace tierkv::cache {
namespace {

using namespace tierkv::snapshot::testing;

TEST(Park, GivesMemoryBackAndComesBackNearlyTheSame) {
  Filled f = filled(kTiers, 1000);
  const MemoryStats before = f.cache->memory_usage(f.seq).value();
  const uint64_t used = in_use(*f.cache);
  std::vector<std::vector<float>> rows;
  for (uint32_t l = 0; l < made_up::kLayers; ++l) rows.push_back(rows_of(*f.cache, f.seq, l, 0, 1000));
  DeepReport report;
  const Status status = f.cache->park(f.seq, at_ratio(10.0), &report);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(f.cache->is_parked(f.seq).value());
  EXPECT_NEAR(report.ratio, 10.0, 0.2);
  EXPECT_EQ(f.cache->sequences(), std::vector<SeqId>{f.seq});
  EXPECT_EQ(f.cache->length(f.seq).value(), 1000u);
  const MemoryStats parked = f.cache->memory_usage(f.seq).value();
  EXPECT_EQ(parked.parked_tokens, before[Tier::archive].tokens);
  EXPECT_EQ(parked[Tier::archive].tokens, 0u);
  EXPECT_GE(parked.parked_bytes, report.bytes);
  EXPECT_LT(parked.parked_bytes, report.bytes + 64);
  EXPECT_EQ(parked.fp16_bytes, before.fp16_bytes);
  EXPECT_EQ(before.total_bytes - parked.total_bytes, before[Tier::archive].bytes() - parked.parked_bytes);
  EXPECT_EQ(in_use(*f.cache), used - before[Tier::archive].bytes() + parked.parked_bytes);
  EXPECT_EQ(f.cache->memory_usage().parked_bytes, parked.parked_bytes);

  ASSERT_TRUE(f.cache->wake(f.seq).ok());
  EXPECT_FALSE(f.cache->is_parked(f.seq).value());
  const MemoryStats awake = f.cache->memory_usage(f.seq).value();
  EXPECT_EQ(awake.parked_bytes, 0u);
  EXPECT_EQ(awake.parked_tokens, 0u);
  EXPECT_EQ(in_use(*f.cache), used);
  for (int t = 0; t < kNumTiers; ++t) EXPECT_EQ(awake.tier[t].tokens, before.tier[t].tokens) << t;
  ASSERT_TRUE(f.cache->verify(f.seq).ok());
  const uint32_t end = report.first_position + report.tokens;
  for (uint32_t l = 0; l < made_up::kLayers; ++l) {
    const auto now = rows_of(*f.cache, f.seq, l, 0, 1000);
    EXPECT_GT(difference(rows[l], now), 0.0);
    EXPECT_LT(difference(rows[l], now), 0.2);
    const size_t width = made_up::kHeads * made_up::kDim;
    for (size_t i = 0; i < 4 * width; ++i) ASSERT_EQ(rows[l][i], now[i]);
    for (size_t i = end * width; i < 1000 * width; ++i) ASSERT_EQ(rows[l][i], now[i]);
  }
  std::mt19937 rng(3);
  std::vector<float> out;
  append(*f.cache, f.seq, rng, 200);
  attend(*f.cache, f.seq, rng, 3, out);
  EXPECT_TRUE(f.cache->truncate(f.seq, 300).ok());
  for (const float x : out) ASSERT_TRUE(std::isfinite(x));
}

TEST(Park, WakesToTheBitAsADeepSnapshotLoads) {
  Filled f = filled(kTiers, 900);
  const auto bytes = f.cache->freeze(f.seq, at_ratio(15.0));
  ASSERT_TRUE(bytes.ok());
  const SeqId loaded = f.cache->unfreeze(*bytes).value();
  ASSERT_TRUE(f.cache->park(f.seq, at_ratio(15.0)).ok());
  EXPECT_EQ(frozen(*f.cache, f.seq), *bytes);  // saving a parked one writes what is packed
  ASSERT_TRUE(f.cache->wake(f.seq).ok());
  EXPECT_EQ(frozen(*f.cache, f.seq), frozen(*f.cache, loaded));
}

TEST(Park, ComesBackIntoTheTiersItCameFrom) {
  Filled f = filled("hot=32,warm=300,warm_codec=rot8,archive=rot3,sinks=4", 1000);
  const MemoryStats before = f.cache->memory_usage(f.seq).value();
  DeepOptions options = at_ratio(10.0);
  options.keep_recent = 100;  // into the warm tier
  DeepReport report;
  ASSERT_TRUE(f.cache->park(f.seq, options, &report).ok());
  const MemoryStats parked = f.cache->memory_usage(f.seq).value();
  EXPECT_GT(parked.parked_tokens, before[Tier::archive].tokens);
  EXPECT_EQ(parked.parked_tokens + parked[Tier::warm].tokens, before[Tier::archive].tokens + before[Tier::warm].tokens);
  ASSERT_TRUE(f.cache->wake(f.seq).ok());
  const MemoryStats awake = f.cache->memory_usage(f.seq).value();
  for (int t = 0; t < kNumTiers; ++t) {
    EXPECT_EQ(awake.tier[t].tokens, before.tier[t].tokens) << t;
    EXPECT_EQ(awake.tier[t].payload_bytes, before.tier[t].payload_bytes) << t;
  }
  for (uint32_t l = 0; l < made_up::kLayers; ++l) EXPECT_EQ(f.cache->positions(f.seq, l, 1).value().size(), 1000u);
}

TEST(Park, RefusesWhatNeedsItsTokensAndNamesWake) {
  Filled f = filled(kTiers, 800);
  ASSERT_TRUE(f.cache->park(f.seq).ok());
  const Bytes before = frozen(*f.cache, f.seq);
  std::vector<float> rows(made_up::kHeads * 2 * made_up::kDim, 0.5f), out(rows.size());
  const RowsView row = RowsView::f32(rows.data(), 1, made_up::kHeads, made_up::kDim);
  const RowsView query = RowsView::f32(rows.data(), 1, 2 * made_up::kHeads, made_up::kDim);
  const uint32_t position = 700;
  const Status refused[] = {
      f.cache->append(f.seq, 0, row, row),
      f.cache->attention(f.seq, 0, query, out.data()),
      f.cache->get(f.seq, 0, std::span(&position, 1), out.data(), nullptr),
      f.cache->truncate(f.seq, 10),
      f.cache->positions(f.seq, 0, 0).status(),
      f.cache->hot_view(f.seq, 0, 0).status(),
      f.cache->park(f.seq),
  };
  for (const Status& status : refused) {
    EXPECT_EQ(status.code(), StatusCode::failed_precondition) << &status - refused;
    EXPECT_NE(status.message().find("wake()"), std::string::npos) << status.message();
  }
  EXPECT_TRUE(f.cache->flush().ok());
  EXPECT_TRUE(f.cache->verify(f.seq).ok());
  EXPECT_EQ(f.cache->length(f.seq, 1).value(), 800u);
  EXPECT_EQ(frozen(*f.cache, f.seq), before);

  Filled evicting = filled("hot=32,warm=64,archive=rot4,sinks=4,evict=sliding_window", 800);
  ASSERT_TRUE(evicting.cache->park(evicting.seq).ok());
  EXPECT_EQ(evicting.cache->evict(evicting.seq, 100).code(), StatusCode::failed_precondition);
}

TEST(Park, RemovingAParkedSequenceGivesEverythingBack) {
  Filled f = filled(kTiers, 800);
  ASSERT_TRUE(f.cache->park(f.seq).ok());
  ASSERT_TRUE(f.cache->remove(f.seq).ok());
  EXPECT_EQ(in_use(*f.cache), 0u);
  EXPECT_EQ(f.cache->memory_usage().parked_bytes, 0u);
  EXPECT_EQ(f.cache->wake(f.seq).code(), StatusCode::not_found);
}

TEST(Park, LeavesForksAlone) {
  Filled f = filled(kTiers, 800);
  const SeqId other = f.cache->fork(f.seq).value();
  const Bytes of_other = frozen(*f.cache, other);
  append_text(*f.cache, f.seq, 800);  // what only this one has is worth packing, with what both have before it
  const uint64_t shared = in_use(*f.cache);
  ASSERT_TRUE(f.cache->park(f.seq).ok());
  EXPECT_LT(in_use(*f.cache), shared);
  EXPECT_EQ(frozen(*f.cache, other), of_other) << "the blocks that both had are the fork's now";
  const uint64_t apart = in_use(*f.cache);
  ASSERT_TRUE(f.cache->park(other).ok());
  EXPECT_LT(in_use(*f.cache), apart);
  ASSERT_TRUE(f.cache->wake(f.seq).ok());
  ASSERT_TRUE(f.cache->wake(other).ok());
  EXPECT_EQ(f.cache->positions(f.seq, 2, 1).value().size(), 1600u);
  EXPECT_EQ(f.cache->positions(other, 2, 1).value().size(), 800u);
  ASSERT_TRUE(f.cache->remove(f.seq).ok());
  append_text(*f.cache, other, 100);
  ASSERT_TRUE(f.cache->verify(other).ok());
  ASSERT_TRUE(f.cache->remove(other).ok());
  EXPECT_EQ(in_use(*f.cache), 0u);
}

TEST(Park, ThatWouldNotShrinkIsRefusedAndSaysBothFigures) {
  Filled f = filled(kTiers, 800);
  const SeqId other = f.cache->fork(f.seq).value();
  const Bytes before = frozen(*f.cache, f.seq);
  const auto refused = [&](const DeepOptions& options) {
    const uint64_t used = in_use(*f.cache);
    const Status status = f.cache->park(f.seq, options);
    EXPECT_EQ(status.code(), StatusCode::failed_precondition) << status.to_string();
    EXPECT_NE(status.message().find("would not shrink"), std::string::npos) << status.message();
    EXPECT_FALSE(f.cache->is_parked(f.seq).value());
    EXPECT_EQ(frozen(*f.cache, f.seq), before);
    EXPECT_EQ(in_use(*f.cache), used);
    return status.message();
  };
  EXPECT_NE(refused({}).find("give back 0"), std::string::npos) << "every block is the fork's as well";
  ASSERT_TRUE(f.cache->remove(other).ok());
  const uint64_t archive = f.cache->memory_usage()[Tier::archive].bytes();
  EXPECT_NE(refused(at_ratio(2.5)).find("give back " + std::to_string(archive)), std::string::npos) << "rot4 is smaller";
  ASSERT_TRUE(f.cache->park(f.seq).ok());
}

TEST(Park, AForkOfAParkedSequenceSharesWhatIsPacked) {
  Filled f = filled(kTiers, 800);
  ASSERT_TRUE(f.cache->park(f.seq).ok());
  const uint64_t packed = f.cache->memory_usage().parked_bytes;
  const SeqId other = f.cache->fork(f.seq).value();
  EXPECT_TRUE(f.cache->is_parked(other).value());
  EXPECT_EQ(f.cache->memory_usage().parked_bytes, packed);
  EXPECT_EQ(frozen(*f.cache, other), frozen(*f.cache, f.seq));
  ASSERT_TRUE(f.cache->wake(f.seq).ok());
  EXPECT_TRUE(f.cache->is_parked(other).value());
  EXPECT_EQ(f.cache->memory_usage().parked_bytes, packed);
  ASSERT_TRUE(f.cache->verify(other).ok());
  ASSERT_TRUE(f.cache->wake(other).ok());
  EXPECT_EQ(f.cache->memory_usage().parked_bytes, 0u);
  EXPECT_EQ(frozen(*f.cache, other), frozen(*f.cache, f.seq));
  ASSERT_TRUE(f.cache->remove(f.seq).ok());
  ASSERT_TRUE(f.cache->verify(other).ok());
  ASSERT_TRUE(f.cache->remove(other).ok());
  EXPECT_EQ(in_use(*f.cache), 0u);
}

TEST(Park, PacksInSeveralPartsAndWakesAll) {
  Filled f = filled(kTiers, 1600);
  const MemoryStats before = f.cache->memory_usage(f.seq).value();
  DeepOptions options = at_ratio(10.0);
  options.keep_recent = 900;
  DeepReport first, second;
  ASSERT_TRUE(f.cache->park(f.seq, options, &first).ok());
  const uint64_t once = f.cache->memory_usage().parked_bytes;
  options.keep_recent = DeepOptions::kTiers;
  const Status status = f.cache->park(f.seq, options, &second);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(second.first_position, first.first_position + first.tokens);
  EXPECT_GT(f.cache->memory_usage().parked_bytes, once);
  const MemoryStats packed = f.cache->memory_usage(f.seq).value();
  EXPECT_EQ(packed[Tier::archive].tokens, 0u);
  EXPECT_EQ(packed.parked_tokens, before[Tier::archive].tokens);
  EXPECT_EQ(packed.parked_bytes, f.cache->memory_usage().parked_bytes);
  EXPECT_EQ(f.cache->park(f.seq, options).code(), StatusCode::failed_precondition) << "nothing else is due";
  const auto refused = f.cache->freeze(f.seq);
  EXPECT_EQ(refused.status().code(), StatusCode::failed_precondition) << refused.status().to_string();
  ASSERT_TRUE(f.cache->verify(f.seq).ok());
  ASSERT_TRUE(f.cache->wake(f.seq).ok());
  const MemoryStats awake = f.cache->memory_usage(f.seq).value();
  for (int t = 0; t < kNumTiers; ++t) EXPECT_EQ(awake.tier[t].tokens, before.tier[t].tokens) << t;
  EXPECT_EQ(awake.total_bytes, before.total_bytes);
  EXPECT_EQ(f.cache->positions(f.seq, 3, 1).value().size(), 1600u);
}

// What a snapshot's deep part becomes is archived, so it has no place behind warm tokens.
TEST(Park, BehindWarmTokensWakesInOrderAndIsNotSavedBefore) {
  Filled f = filled("hot=32,warm=512,warm_codec=rot8,archive=rot3,sinks=4", 500);
  const MemoryStats before = f.cache->memory_usage(f.seq).value();
  ASSERT_EQ(before[Tier::archive].tokens, 0u);
  DeepOptions options = at_ratio(10.0);
  options.first_position = 200;
  options.keep_recent = 64;
  DeepReport report;
  const Status status = f.cache->park(f.seq, options, &report);
  ASSERT_TRUE(status.ok()) << status.to_string();
  ASSERT_GE(report.first_position, 200u);
  const auto refused = f.cache->freeze(f.seq);
  EXPECT_EQ(refused.status().code(), StatusCode::failed_precondition) << refused.status().to_string();
  EXPECT_NE(refused.status().to_string().find("wake()"), std::string::npos) << refused.status().to_string();
  ASSERT_TRUE(f.cache->wake(f.seq).ok());
  const MemoryStats awake = f.cache->memory_usage(f.seq).value();
  for (int t = 0; t < kNumTiers; ++t) EXPECT_EQ(awake.tier[t].tokens, before.tier[t].tokens) << t;
  const auto bytes = f.cache->freeze(f.seq);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(frozen(*f.cache, f.cache->unfreeze(*bytes).value()), *bytes);
}

TEST(Park, IsSavedAndLoadedAsItIs) {
  Filled f = filled(kTiers, 800);
  DeepReport packed, saved;
  ASSERT_TRUE(f.cache->park(f.seq, at_ratio(12.0), &packed).ok());
  const TestFolder folder;
  const std::string path = folder.file("parked.tkv");
  ASSERT_TRUE(f.cache->save(f.seq, path, at_ratio(40.0), &saved).ok());  // not packed again
  EXPECT_EQ(saved.bytes, packed.bytes);
  EXPECT_EQ(saved.tokens, packed.tokens);
  EXPECT_EQ(inspect_snapshot(path)->deep_tokens, packed.tokens);
  const auto loaded = f.cache->load(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_FALSE(f.cache->is_parked(*loaded).value());
  ASSERT_TRUE(f.cache->wake(f.seq).ok());
  EXPECT_EQ(frozen(*f.cache, *loaded), frozen(*f.cache, f.seq));
}

TEST(Park, WakingOverTheBudgetIsRefusedAndLosesNothing) {
  CacheConfig config = config_of("hot=32,warm=64,archive=rot4,sinks=4");
  config.byte_budget = 1000 << 10;
  auto cache = AdaptiveKVCache::create(config, calibration()).value();
  const SeqId idle = cache->add_sequence().value(), busy = cache->add_sequence().value();
  append_text(*cache, idle, 2000);
  ASSERT_TRUE(cache->park(idle, at_ratio(20.0)).ok());
  const Bytes before = frozen(*cache, idle);
  // The other one takes what was given back, to the last block.
  const std::vector<float> row(made_up::kHeads * made_up::kDim, 0.25f);
  Status status;
  for (uint32_t t = 0; t < 20000 && status.ok(); ++t) {
    for (uint32_t l = 0; l < made_up::kLayers && status.ok(); ++l) {
      const RowsView view = RowsView::f32(row.data(), 1, made_up::kHeads, made_up::kDim);
      status = cache->append(busy, l, view, view);
    }
  }
  ASSERT_EQ(status.code(), StatusCode::resource_exhausted) << status.to_string();
  for (int i = 0; i < 3; ++i) {
    const Status refused = cache->wake(idle);
    EXPECT_EQ(refused.code(), StatusCode::resource_exhausted) << refused.to_string();
    EXPECT_TRUE(cache->is_parked(idle).value());
    EXPECT_TRUE(cache->verify(idle).ok());
  }
  EXPECT_EQ(frozen(*cache, idle), before);
  EXPECT_LE(cache->memory_usage().total_bytes, config.byte_budget);
  ASSERT_TRUE(cache->remove(busy).ok());
  status = cache->wake(idle);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(cache->verify(idle).ok());
  EXPECT_EQ(cache->positions(idle, 0, 0).value().size(), 2000u);
}

// The moment parking is for: nothing is left to allocate, not even room for the packed bytes.
TEST(Park, WorksWhenTheBudgetIsFull) {
  for (const uint64_t budget : {300u << 10, 411u << 10}) {
    CacheConfig config = config_of("hot=32,warm=64,archive=rot4,sinks=4");
    config.byte_budget = budget;
    auto cache = AdaptiveKVCache::create(config, calibration()).value();
    const SeqId seq = cache->add_sequence().value();
    Status status;
    while (status.ok()) {
      const uint32_t length = cache->length(seq).value();
      const made_up::Text text = made_up::model().text(1, length);
      for (uint32_t l = 0; l < made_up::kLayers && status.ok(); ++l) {
        const auto view = [&](const std::vector<float>& rows) {
          return RowsView::f32(rows.data(), 1, made_up::kHeads, made_up::kDim);
        };
        status = cache->append(seq, l, view(text.keys[l]), view(text.values[l]));
      }
    }
    const uint32_t length = cache->length(seq).value();
    ASSERT_TRUE(cache->truncate(seq, length).ok());
    const uint64_t full = in_use(*cache);
    for (int round = 0; round < 2; ++round) {
      status = cache->park(seq, at_ratio(20.0));
      ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_LE(cache->memory_usage().total_bytes, budget);
      EXPECT_LT(in_use(*cache), full * 4 / 5);
      ASSERT_TRUE(cache->verify(seq).ok());
      status = cache->wake(seq);
      ASSERT_TRUE(status.ok()) << status.to_string() << " in round " << round << ", " << length << " tokens";
      ASSERT_TRUE(cache->verify(seq).ok());
      EXPECT_EQ(cache->positions(seq, 1, 1).value().size(), length);
    }
    ASSERT_TRUE(cache->remove(seq).ok());
    EXPECT_EQ(in_use(*cache), 0u);
  }
}

// A small budget, sequences that come and go: free memory is there, but in pieces. Whatever is refused, nothing is lost.
TEST(Park, ARefusedWakeLosesNothingInFragmentedMemory) {
  const uint32_t seed = 1;  // finds, among others, a wake that fails after the packed bytes made room
  CacheConfig config = config_of("hot=16,warm=64,archive=rot4,sinks=4");
  config.byte_budget = 400 << 10;
  auto cache = AdaptiveKVCache::create(config, calibration()).value();
  std::mt19937 rng(seed);
  const SeqId idle = cache->add_sequence().value();
  append_text(*cache, idle, 500);
  std::vector<SeqId> others;
  int refused = 0, woken = 0;
  for (int step = 0; step < 8; ++step) {
    const Status packed = cache->park(idle, at_ratio(12.0));
    ASSERT_TRUE(packed.ok()) << packed.to_string() << ", seed " << seed << ", step " << step;
    const Bytes bytes = frozen(*cache, idle);
    for (int tries = 0; cache->is_parked(idle).value(); ++tries) {
      while (tries == 0 || (!others.empty() && rng() % 2)) {  // others grow into the memory until it is full
        const SeqId other = cache->add_sequence().value();
        others.push_back(other);
        Status status;
        const uint32_t tokens = 20 + rng() % 200;
        const std::vector<float> rows(static_cast<size_t>(tokens) * made_up::kHeads * made_up::kDim, 0.25f);
        const RowsView view = RowsView::f32(rows.data(), tokens, made_up::kHeads, made_up::kDim);
        for (uint32_t l = 0; l < made_up::kLayers && status.ok(); ++l) status = cache->append(other, l, view, view);
        if (!status.ok()) break;
      }
      const size_t victim = rng() % others.size();
      ASSERT_TRUE(cache->remove(others[victim]).ok());
      others.erase(others.begin() + static_cast<ptrdiff_t>(victim));
      const Status status = cache->wake(idle);
      (status.ok() ? woken : refused) += 1;
      if (status.ok()) break;
      ASSERT_EQ(status.code(), StatusCode::resource_exhausted) << status.to_string();
      ASSERT_EQ(frozen(*cache, idle), bytes) << "seed " << seed << ", step " << step;
      ASSERT_TRUE(cache->verify(idle).ok());
      const MemoryStats m = cache->memory_usage();
      ASSERT_LE(m.total_bytes, config.byte_budget);
    }
    ASSERT_TRUE(cache->verify(idle).ok());
    ASSERT_EQ(cache->positions(idle, 2, 1).value().size(), 500u);
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(woken, 0);
  for (const SeqId other : others) ASSERT_TRUE(cache->remove(other).ok());
  ASSERT_TRUE(cache->remove(idle).ok());
  EXPECT_EQ(in_use(*cache), 0u);
}

TEST(Park, AFailedOneChangesNothing) {
  Filled without = filled(kTiers, 800, nullptr);
  Bytes before = frozen(*without.cache, without.seq);
  Status status = without.cache->park(without.seq);
  EXPECT_EQ(status.code(), StatusCode::failed_precondition);
  EXPECT_NE(status.message().find("tierkv calibrate --deep"), std::string::npos) << status.message();
  EXPECT_EQ(frozen(*without.cache, without.seq), before);

  Filled young = filled(kTiers, 100);
  before = frozen(*young.cache, young.seq);
  DeepReport report;
  status = young.cache->park(young.seq, {}, &report);
  EXPECT_EQ(status.code(), StatusCode::failed_precondition);
  EXPECT_NE(status.message().find("tokens lie between"), std::string::npos) << status.message();
  EXPECT_EQ(report.tokens, 0u);
  EXPECT_FALSE(young.cache->is_parked(young.seq).value());
  EXPECT_EQ(young.cache->wake(young.seq).code(), StatusCode::failed_precondition);
  EXPECT_EQ(frozen(*young.cache, young.seq), before);

  Filled f = filled(kTiers, 800);
  before = frozen(*f.cache, f.seq);
  const MemoryStats stats = f.cache->memory_usage();
  DeepOptions both = at_ratio(20.0);
  both.quality = 0.97;
  EXPECT_EQ(f.cache->park(f.seq, both).code(), StatusCode::invalid_argument);
  EXPECT_FALSE(f.cache->park(f.seq, at_ratio(1e6)).ok());
  EXPECT_EQ(f.cache->park(f.seq + 1).code(), StatusCode::not_found);
  const SeqId uneven = f.cache->fork(f.seq).value();
  const std::vector<float> row(made_up::kHeads * made_up::kDim, 0.5f);
  const RowsView view = RowsView::f32(row.data(), 1, made_up::kHeads, made_up::kDim);
  ASSERT_TRUE(f.cache->append(uneven, 0, view, view).ok());
  EXPECT_NE(f.cache->park(uneven).message().find("in the middle of a token"), std::string::npos);
  ASSERT_TRUE(f.cache->remove(uneven).ok());
  EXPECT_EQ(frozen(*f.cache, f.seq), before);
  EXPECT_EQ(f.cache->memory_usage().fp16_bytes, stats.fp16_bytes);
  EXPECT_EQ(in_use(*f.cache), stats.total_bytes - stats.free_bytes);
}

TEST(Park, KeepsTheCalibrationItWasPackedWith) {
  Filled f = filled(kTiers, 800);
  ASSERT_TRUE(f.cache->park(f.seq).ok());
  ASSERT_TRUE(f.cache->set_calibration(calibration(8)).ok());
  const Status status = f.cache->wake(f.seq);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(f.cache->positions(f.seq, 0, 0).value().size(), 800u);
}

TEST(Park, TakesItsTargetFromTheConfiguration) {
  DeepReport report;
  Filled f = filled("hot=32,warm=64,archive=rot4,sinks=4,deep.ratio=12", 900);
  ASSERT_TRUE(f.cache->park(f.seq, {}, &report).ok());
  EXPECT_NEAR(report.ratio, 12.0, 0.3);
  ASSERT_TRUE(f.cache->wake(f.seq).ok());
  ASSERT_TRUE(f.cache->freeze(f.seq, DeepOptions(), &report).ok());
  EXPECT_NEAR(report.ratio, 12.0, 0.3);
  ASSERT_TRUE(f.cache->freeze(f.seq, at_ratio(16.0), &report).ok());
  EXPECT_NEAR(report.ratio, 16.0, 0.4);

  Filled quality = filled("hot=32,warm=64,archive=rot4,sinks=4,deep_quality=0.9", 900);
  ASSERT_TRUE(quality.cache->park(quality.seq, {}, &report).ok());
  EXPECT_NEAR(report.quality, 0.9, 0.01);

  Filled neither = filled(kTiers, 900);
  ASSERT_TRUE(neither.cache->park(neither.seq, {}, &report).ok());
  EXPECT_NEAR(report.ratio, 20.0, 0.5);
}

}  // namespace
}  // namespace tierkv::cache
