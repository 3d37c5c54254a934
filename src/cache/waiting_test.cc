// Tokens that wait for tables: where they stay meanwhile, where they end, and what a byte budget makes of it.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "base/folder_testing.h"
#include "snapshot/deep_testing.h"
#include "solve/testing.h"
#include "tierkv/cache.h"
#include "tierkv/snapshot.h"

namespace tierkv {
namespace {

using calib::SyntheticModel;
using calib::SyntheticShape;

constexpr uint32_t kLayers = 2, kHeads = 4, kKvHeads = 2, kDim = 64;
// A warm codec whose blocks are the same with tables and without, so that archives can be compared to the bit.
constexpr const char* kTiers = "hot=32,warm=128,warm_codec=rot4,archive=auto,sinks=4";
// The presets' own: with tables its codes are chosen better (quant/even.h).
constexpr const char* kGuided = "hot=32,warm=128,warm_codec=even4,archive=auto,sinks=4";
constexpr uint64_t kNever = 1u << 30;

CalibrationPtr tables() {
  static const CalibrationPtr made = solve::klt_calibration(SyntheticModel(SyntheticShape{}).statistics()).value();
  return made;
}

LearningModel model_of(uint32_t layers = kLayers) {
  LearningModel model;
  model.name = "made up";
  model.fingerprint = 7;
  model.ropes.assign(layers, solve::usual_rope(kDim));
  return model;
}

struct World {
  explicit World(const std::string& kv, CalibrationPtr calibration = nullptr) {
    CacheConfig config;
    config.num_layers = kLayers, config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
    EXPECT_TRUE(apply_spec(kv, config).ok()) << kv;
    auto made = AdaptiveKVCache::create(config, std::move(calibration));
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    cache = std::move(*made);
    seq = cache->add_sequence().value();
  }
  // Learns for ever: tables come by hand.
  World& learning(uint64_t wanted = kNever) {
    const Status status = cache->learn(model_of(), {wanted, ""});
    EXPECT_TRUE(status.ok()) << status.to_string();
    return *this;
  }
  // The rows of a position are the same in every world.
  Status append_to(SeqId to, uint32_t count) {
    for (uint32_t l = 0; l < kLayers; ++l) {
      const uint32_t from = cache->length(to, l).value();
      std::vector<float> k, v;
      std::normal_distribution<float> normal;
      for (uint32_t t = from; t < from + count; ++t) {
        for (uint32_t h = 0; h < kKvHeads; ++h) {
          const auto key = model.key(l, h, t);
          k.insert(k.end(), key.begin(), key.end());
          std::mt19937 rng(t * 16 + l * 4 + h);
          for (uint32_t c = 0; c < kDim; ++c) v.push_back(normal(rng));
        }
      }
      const Status status =
          cache->append(to, l, RowsView::f32(k.data(), count, kKvHeads, kDim), RowsView::f32(v.data(), count, kKvHeads, kDim));
      if (!status.ok()) return status;
    }
    return {};
  }
  void append(uint32_t count, uint32_t step = 64) {
    for (uint32_t done = 0; done < count; done += step) {
      const Status status = append_to(seq, std::min(step, count - done));
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
  }
  uint64_t tokens(Tier tier) const { return cache->memory_usage()[tier].tokens / (kLayers * kKvHeads); }
  std::vector<std::byte> frozen() const { return cache->freeze(seq).value(); }
  std::vector<float> attend() {
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    std::vector<float> queries(kHeads * kDim), out(kHeads * kDim);
    for (float& q : queries) q = 0.3f * normal(rng);
    EXPECT_TRUE(cache->attention(seq, 0, RowsView::f32(queries.data(), 1, kHeads, kDim), out.data()).ok());
    return out;
  }

  SyntheticModel model{SyntheticShape{}};
  std::unique_ptr<AdaptiveKVCache> cache;
  SeqId seq = 0;
};

TEST(Waiting, TokensDueForTheArchiveStayWarm) {
  World world(kTiers);
  world.learning().append(1500);
  EXPECT_EQ(world.tokens(Tier::archive), 0u);
  EXPECT_GT(world.tokens(Tier::warm), 1300u);
  ASSERT_TRUE(world.cache->flush().ok());
  EXPECT_EQ(world.tokens(Tier::archive), 0u) << "flush() archived what waits";
  const LearningReport report = world.cache->learning();
  EXPECT_EQ(report.phase, LearningPhase::gathering);
  EXPECT_TRUE(report.waiting);
  EXPECT_EQ(report.tokens, 1500u);
  EXPECT_NE(report.sentence.find("1,500 of 1,073,741,824 tokens; older tokens wait at 4 bits"), std::string::npos)
      << report.sentence;
}

TEST(Waiting, EndsInTheArchiveOfACacheThatHadTheTablesFromTheStart) {
  for (const uint32_t step : {1u, 64u, 500u}) {
    World from_start(kTiers, tables()), late(kTiers);
    late.learning();
    from_start.append(1100, step);
    late.append(1100, step);
    EXPECT_NE(late.frozen(), from_start.frozen());
    ASSERT_TRUE(late.cache->set_calibration(tables()).ok());
    EXPECT_EQ(late.cache->learning().phase, LearningPhase::off);
    EXPECT_FALSE(late.cache->learning().waiting);
    ASSERT_TRUE(late.cache->flush().ok());
    ASSERT_TRUE(from_start.cache->flush().ok());
    EXPECT_GT(late.tokens(Tier::archive), 800u);
    EXPECT_EQ(late.frozen(), from_start.frozen()) << "step " << step;
    EXPECT_EQ(late.attend(), from_start.attend());
  }
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
  return std::sqrt(sum);
}

// What waited was coded without tables: its archive is not the same to the bit, but laid out the same and as near to what was
// appended.
TEST(Waiting, EndsInAnArchiveAsGoodWhereTheWarmTierUsesTablesToo) {
  World exact("hot=all"), from_start(kGuided, tables()), late(kGuided);
  late.learning();
  for (World* world : {&exact, &from_start, &late}) world->append(1100);
  ASSERT_TRUE(late.cache->set_calibration(tables()).ok());
  ASSERT_TRUE(late.cache->flush().ok());
  ASSERT_TRUE(from_start.cache->flush().ok());
  for (const Tier tier : {Tier::sink, Tier::hot, Tier::warm, Tier::archive}) {
    EXPECT_EQ(late.cache->memory_usage()[tier].payload_bytes, from_start.cache->memory_usage()[tier].payload_bytes);
  }
  EXPECT_NE(late.frozen(), from_start.frozen());
  EXPECT_LT(distance(late.attend(), exact.attend()), 1.3 * distance(from_start.attend(), exact.attend()));
}

// Without flush(), and a little with every token.
TEST(Waiting, CatchesUpAsTheSequenceGrows) {
  World from_start(kTiers, tables()), late(kTiers);
  late.learning().append(1100);
  from_start.append(1100);
  ASSERT_TRUE(late.cache->set_calibration(tables()).ok());
  uint64_t before = 0;
  for (int i = 0; i < 20; ++i) {
    late.append(1);
    from_start.append(1);
    EXPECT_LE(late.tokens(Tier::archive), before + 2 * 128) << "one token had to wait for all of them";
    before = late.tokens(Tier::archive);
  }
  EXPECT_EQ(late.frozen(), from_start.frozen());
}

TEST(Waiting, OnlyArchivesThatTablesWouldChangeWait) {
  World named("hot=32,warm=128,archive=rot2");
  EXPECT_EQ(named.cache->learn(model_of()).code(), StatusCode::failed_precondition);
  named.append(800);
  EXPECT_GT(named.tokens(Tier::archive), 300u);
  World without("hot=32,warm=0,archive=auto");  // there is no tier to wait in
  without.learning().append(800);
  EXPECT_GT(without.tokens(Tier::archive), 300u);
  EXPECT_FALSE(without.cache->learning().waiting);
  World none("fp16");
  EXPECT_EQ(none.cache->learn(model_of()).code(), StatusCode::failed_precondition);
}

TEST(Waiting, LearnsAtMostOnceAndNotWhatIsKnown) {
  EXPECT_EQ(World(kTiers, tables()).cache->learn(model_of()).code(), StatusCode::failed_precondition);
  World world(kTiers);
  EXPECT_EQ(world.cache->learning().phase, LearningPhase::off);
  EXPECT_EQ(world.cache->learn(model_of(1)).code(), StatusCode::invalid_argument);
  LearningModel bad = model_of();
  bad.ropes[1][3].a = kDim;
  EXPECT_EQ(world.cache->learn(bad).code(), StatusCode::invalid_argument);
  bad = model_of();
  bad.grams.assign(kLayers, std::vector<float>(5));
  EXPECT_EQ(world.cache->learn(bad).code(), StatusCode::invalid_argument);
  EXPECT_EQ(world.cache->learn(model_of(), {0, ""}).code(), StatusCode::invalid_argument);
  world.learning();
  EXPECT_EQ(world.cache->learn(model_of()).code(), StatusCode::failed_precondition);
  world.cache->set_residual(99, 1.0);  // ignored
  world.cache->set_residual(0, -1.0);
}

TEST(Waiting, TheTablesOfAnotherShapeDoNotEndIt) {
  SyntheticShape shape;
  shape.layers = 3;
  const CalibrationPtr other = solve::klt_calibration(SyntheticModel(shape).statistics()).value();
  World world(kTiers);
  world.learning().append(800);
  EXPECT_FALSE(world.cache->set_calibration(other).ok());
  EXPECT_EQ(world.cache->learning().phase, LearningPhase::gathering);
  world.append(200);
  EXPECT_EQ(world.tokens(Tier::archive), 0u);
}

uint32_t most_tokens(World& world) {
  uint32_t count = 0;
  while (count < 20000 && world.append_to(world.seq, 16).ok()) count += 16;
  return count;
}

// What fits is what fits without waiting, but for the lists that had twice as many blocks: a block or two, of which half a one is
// seen at these lengths.
constexpr double kNearly = 0.95;
constexpr double kHalfABlock = 64;

TEST(Waiting, EndsWhereABudgetHasNoRoomForIt) {
  for (const uint64_t kib : {320, 520, 777, 1024}) {
    const std::string kv = std::string(kTiers) + ",budget=" + std::to_string(kib * 1024);
    World plain(kv), waiting(kv);
    waiting.learning();
    const uint32_t fits = most_tokens(plain);
    EXPECT_GE(most_tokens(waiting), kNearly * fits - kHalfABlock) << kib << " KiB";
    EXPECT_FALSE(waiting.cache->learning().waiting) << kib << " KiB";
    EXPECT_EQ(waiting.cache->learning().phase, LearningPhase::gathering);
    EXPECT_GT(waiting.tokens(Tier::archive), 0u);
    EXPECT_TRUE(waiting.cache->verify(waiting.seq).ok());
  }
}

TEST(Waiting, EndsForASecondSequenceThatNeedsTheRoom) {
  const std::string kv = std::string(kTiers) + ",budget=" + std::to_string(900 * 1024);
  World plain(kv), waiting(kv);
  waiting.learning();
  plain.append(1000);
  waiting.append(1000);
  const SeqId a = plain.cache->add_sequence().value(), b = waiting.cache->add_sequence().value();
  uint32_t with = 0, without = 0;
  while (without < 20000 && plain.append_to(a, 16).ok()) without += 16;
  while (with < 20000 && waiting.append_to(b, 16).ok()) with += 16;
  EXPECT_GE(with, kNearly * without - kHalfABlock);
}

// Eviction gives up nothing that waiting would have kept.
TEST(Waiting, EndsBeforeAPolicyDropsTokens) {
  const std::string kv = std::string(kTiers) + ",evict=h2o,budget=" + std::to_string(900 * 1024);
  World plain(kv), waiting(kv);
  waiting.learning();
  const auto first_loss = [](World& world) {
    for (uint32_t count = 0; count < 20000; count += 16) {
      if (!world.append_to(world.seq, 16).ok()) return count;
      if (world.cache->positions(world.seq, 0, 0).value().size() < count + 16) return count;
    }
    return 20000u;
  };
  const uint32_t without = first_loss(plain);
  EXPECT_GE(first_loss(waiting), kNearly * without);
}

TEST(Waiting, SnapshotsForksAndTruncationsGoOnFromWhereTheyAre) {
  World from_start(kTiers, tables()), late(kTiers);
  late.learning().append(1100);
  const std::vector<std::byte> bytes = late.frozen();

  World loaded(kTiers, tables());  // archives what waited
  loaded.seq = loaded.cache->unfreeze(bytes).value();
  ASSERT_TRUE(loaded.cache->flush().ok());
  from_start.append(1100);
  EXPECT_EQ(loaded.frozen(), from_start.frozen());

  World still(kTiers);
  still.learning();
  still.seq = still.cache->unfreeze(bytes).value();
  EXPECT_EQ(still.frozen(), bytes);

  const SeqId fork = late.cache->fork(late.seq).value();
  ASSERT_TRUE(late.cache->truncate(late.seq, 700).ok());
  EXPECT_EQ(late.cache->freeze(fork).value(), bytes);
  EXPECT_EQ(late.tokens(Tier::archive), 0u);
  late.append(400);  // the same rows again
  ASSERT_TRUE(late.cache->set_calibration(tables()).ok());
  ASSERT_TRUE(late.cache->flush().ok());
  EXPECT_EQ(late.cache->freeze(fork).value(), from_start.frozen());
  EXPECT_EQ(late.cache->length(late.seq).value(), 1100u);
  EXPECT_TRUE(late.cache->verify(late.seq).ok());
  late.seq = fork;
  EXPECT_EQ(late.attend(), from_start.attend());
}

TEST(Waiting, AWaitingSequenceIsParkedOnlyWhenThereAreTables) {
  World world(kTiers);
  world.learning().append(1100);
  EXPECT_EQ(world.cache->park(world.seq).code(), StatusCode::failed_precondition);
  EXPECT_EQ(world.cache->learning().phase, LearningPhase::gathering);
}

}  // namespace
}  // namespace tierkv
