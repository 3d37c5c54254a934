// Sequences in pieces: what is made of runs goes on like what they were made of, and nothing else is accepted.
#include "snapshot/run.h"

#include <gtest/gtest.h>

#include "snapshot/testing.h"

namespace tierkv::snapshot {
namespace {

using namespace tierkv::snapshot::testing;

using Runs = std::vector<Bytes>;

Result<SeqId> joined(AdaptiveKVCache& cache, const Runs& runs) {
  std::vector<std::span<const std::byte>> spans(runs.begin(), runs.end());
  return cache.unfreeze_runs(spans);
}

// The runs that end at every `step`-th place, and the rest.
Runs cut(const AdaptiveKVCache& cache, SeqId seq, size_t step, bool rest) {
  Runs runs;
  uint32_t first = 0;
  const std::vector<uint32_t> ends = cache.run_ends(seq).value();
  const auto add = [&](uint32_t end) {
    auto bytes = cache.freeze_run(seq, first, end);
    ASSERT_TRUE(bytes.ok()) << first << ".." << end << ": " << bytes.status().to_string();
    runs.push_back(std::move(bytes).value());
    first = end;
  };
  for (size_t i = step; i < ends.size(); i += step) add(ends[i]);
  if (rest) add(cache.length(seq).value());
  return runs;
}

CacheConfig windowed_config() {
  CacheConfig config = small_config();
  config.overrides.push_back({});
  config.overrides.back().first = config.overrides.back().last = 1;
  config.overrides.back().window = 33;
  config.overrides.back().hot = 40;
  return config;
}

TEST(Runs, WithTheRestASequenceGoesOnBitForBit) {
  for (const CacheConfig& config :
       {small_config("balanced"), small_config("compact"), small_config("quality"), windowed_config()}) {
    const uint32_t seed = std::random_device{}();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    auto cache = make_cache(config);
    const SeqId a = cache->add_sequence().value();
    append(*cache, a, rng, 1500 + rng() % 400);
    (void)live(*cache, a, static_cast<uint32_t>(rng()), 12);
    for (const size_t step : {1, 2, 5}) {
      const Runs runs = cut(*cache, a, step, true);
      auto other = make_cache(config);
      const auto b = joined(*other, runs);
      ASSERT_TRUE(b.ok()) << b.status().to_string();
      EXPECT_TRUE(other->verify(*b).ok());
      EXPECT_EQ(frozen(*other, *b), frozen(*cache, a));
      const auto life = static_cast<uint32_t>(rng());
      const SeqId copy = cache->fork(a).value();
      EXPECT_TRUE(same_bits(live(*other, *b, life, 25), live(*cache, copy, life, 25)));
    }
  }
}

TEST(Runs, WithoutTheRestThereIsTheArchiveAndMoreCanFollow) {
  auto cache = make_cache(small_config());
  const SeqId a = cache->add_sequence().value();
  std::mt19937 rng(3);
  append(*cache, a, rng, 1500);
  const Runs runs = cut(*cache, a, 2, false);
  ASSERT_GE(runs.size(), 3u);
  const auto b = joined(*cache, runs);
  ASSERT_TRUE(b.ok()) << b.status().to_string();
  const uint32_t length = cache->length(*b).value();
  EXPECT_GT(length, 700u);
  // Row by row what the whole sequence has there.
  std::vector<uint32_t> positions(length);
  for (uint32_t i = 0; i < length; ++i) positions[i] = i;
  std::vector<float> keys[2], values[2];
  for (int i = 0; i < 2; ++i) {
    keys[i].resize(static_cast<size_t>(length) * 64);
    values[i].resize(keys[i].size());
    ASSERT_TRUE(cache->get(i ? *b : a, 1, positions, keys[i].data(), values[i].data()).ok());
  }
  EXPECT_TRUE(same_bits(keys[0], keys[1]));
  EXPECT_TRUE(same_bits(values[0], values[1]));
  (void)live(*cache, *b, 5, 40);
}

// A store keeps what two sequences begin with once.
TEST(Runs, SequencesThatBeginAlikeHaveTheSameRuns) {
  auto cache = make_cache(small_config());
  std::mt19937 rng(4);
  const SeqId a = cache->add_sequence().value();
  append(*cache, a, rng, 900);
  const SeqId b = cache->fork(a).value();
  append(*cache, b, rng, 900);
  const Runs of_a = cut(*cache, a, 1, false), of_b = cut(*cache, b, 1, false);
  ASSERT_GE(of_a.size(), 2u);
  ASSERT_GT(of_b.size(), of_a.size());
  for (size_t i = 0; i < of_a.size(); ++i) EXPECT_EQ(of_a[i], of_b[i]) << i;
}

TEST(Runs, OnlyConsecutiveOnesAreASequence) {
  auto cache = make_cache(small_config());
  const SeqId a = cache->add_sequence().value();
  std::mt19937 rng(5);
  append(*cache, a, rng, 1500);
  const Runs runs = cut(*cache, a, 1, true);
  ASSERT_GE(runs.size(), 4u);
  const auto refused = [&](const Runs& wrong) {
    const auto result = joined(*cache, wrong);
    return !result.ok() && result.status().code() == StatusCode::data_loss;
  };
  EXPECT_TRUE(refused({runs[1]}));
  EXPECT_TRUE(refused({runs[0], runs[2]}));
  EXPECT_TRUE(refused({runs[1], runs[0]}));
  EXPECT_TRUE(refused({runs[0], runs[0]}));
  EXPECT_TRUE(refused({runs[0], runs.back()}));
  EXPECT_TRUE(refused({runs.back(), runs[0]}));
  EXPECT_FALSE(joined(*cache, {}).ok());
  auto foreign = small_config();
  foreign.head_dim = 48;
  EXPECT_EQ(joined(*make_cache(foreign), runs).status().code(), StatusCode::invalid_argument);
}

TEST(Runs, AModelWithSlidingWindowsNeedsTheRest) {
  auto cache = make_cache(windowed_config());
  const SeqId a = cache->add_sequence().value();
  std::mt19937 rng(6);
  append(*cache, a, rng, 1200);
  EXPECT_TRUE(joined(*cache, cut(*cache, a, 1, true)).ok());
  const auto without = joined(*cache, cut(*cache, a, 1, false));
  EXPECT_EQ(without.status().code(), StatusCode::data_loss);
}

TEST(Runs, PositionsThatAreNoEndsAreRefused) {
  auto cache = make_cache(small_config());
  const SeqId a = cache->add_sequence().value();
  std::mt19937 rng(7);
  append(*cache, a, rng, 1200);
  const std::vector<uint32_t> ends = cache->run_ends(a).value();
  ASSERT_GE(ends.size(), 3u);
  EXPECT_EQ(cache->freeze_run(a, 0, ends[1] + 1).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(cache->freeze_run(a, 5000, 5100).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(cache->freeze_run(a, ends[1], ends[1]).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(cache->freeze_run(a, ends[1], ends[0]).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(cache->freeze_run(99, 0, ends[0]).status().code(), StatusCode::not_found);
  CacheConfig unsealed = small_config();
  unsealed.tiers.hot = kAll;
  auto all_hot = make_cache(unsealed);
  const SeqId hot = all_hot->add_sequence().value();
  append(*all_hot, hot, rng, 300);
  EXPECT_TRUE(all_hot->run_ends(hot).value().empty());
  EXPECT_TRUE(joined(*all_hot, {all_hot->freeze_run(hot, 0, 300).value()}).ok()) << "a rest by itself is a snapshot";
}

// Whatever single byte changes, and wherever the bytes end.
TEST(Runs, DamageIsRefusedAndLeavesTheCacheAlone) {
  CacheConfig config = small_config();
  config.num_layers = 1;
  auto cache = make_cache(config);
  const SeqId a = cache->add_sequence().value();
  std::mt19937 rng(8);
  append(*cache, a, rng, 900);
  Runs runs = cut(*cache, a, 1, true);
  const MemoryStats before = cache->memory_usage();
  for (int i = 0; i < 400; ++i) {
    Runs wrong = runs;
    Bytes& one = wrong[rng() % wrong.size()];
    if (i % 2) one[rng() % one.size()] ^= std::byte{static_cast<unsigned char>(1u << rng() % 8)};
    else one.resize(rng() % one.size());
    EXPECT_FALSE(joined(*cache, wrong).ok());
  }
  // With the checksum of the file made right what is inside is judged. Much of it may be as good as before; nothing may break.
  for (int i = 0; i < 400; ++i) {
    Runs wrong = runs;
    Bytes& one = wrong[rng() % wrong.size()];
    one[64 + rng() % 600 % (one.size() - 72)] ^= std::byte{static_cast<unsigned char>(1u << rng() % 8)};
    reseal(one);
    if (const auto loaded = joined(*cache, wrong); loaded.ok()) {
      (void)live(*cache, *loaded, 9, 3);
      ASSERT_TRUE(cache->remove(*loaded).ok());
    }
  }
  ASSERT_TRUE(cache->flush().ok());
  EXPECT_EQ(cache->memory_usage().bookkeeping_bytes, before.bookkeeping_bytes);
  EXPECT_TRUE(joined(*cache, runs).ok());
}

}  // namespace
}  // namespace tierkv::snapshot
