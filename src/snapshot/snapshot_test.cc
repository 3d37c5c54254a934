// Resume: what was frozen or saved goes on bit for bit like what was not.
#include "snapshot/snapshot.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "snapshot/testing.h"
#include "tierkv/snapshot.h"

namespace tierkv::snapshot {
namespace {

using namespace tierkv::snapshot::testing;

struct Case {
  std::string name;
  CacheConfig config;
  uint32_t prefill = 300;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::string& preset : preset_names()) {
    cases.push_back({preset, small_config(preset), preset == "adr004" ? 1400u : preset == "quality" ? 1300u : 700u});
  }
  Case c{"bf16", small_config()};
  c.config.hot_type = "bf16";
  cases.push_back(c);
  c = {"no_sinks_no_hot", small_config("compact")};
  c.config.tiers.hot = 0;
  c.config.tiers.sinks = 0;
  cases.push_back(c);
  c = {"ring", small_config("fp16")};
  c.config.tiers.window = 48;
  cases.push_back(c);
  c = {"ring_and_full", small_config()};
  c.config.overrides.push_back({});
  c.config.overrides.back().first = c.config.overrides.back().last = 1;
  c.config.overrides.back().window = 33;
  c.config.overrides.back().hot = 40;
  cases.push_back(c);
  c = {"window_in_tiers", small_config("compact")};
  c.config.tiers.window = 200;
  cases.push_back(c);
  for (const char* policy :
       {"h2o", "sliding_window", "streaming_llm", "tova", "snapkv", "scissorhands", "pyramidkv", "pyramidkv_linear", "akv"}) {
    c = {policy, small_config("compact")};
    c.config.eviction.policy = policy;
    c.config.max_seq_len = 256;
    cases.push_back(c);
  }
  return cases;
}

class SnapshotResume : public ::testing::TestWithParam<Case> {};

TEST_P(SnapshotResume, GoesOnBitForBit) {
  const Case& c = GetParam();
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 rng(seed);
  auto original = make_cache(c.config);
  const SeqId a = original->add_sequence().value();
  append(*original, a, rng, c.prefill / 2 + rng() % (c.prefill / 2));
  for (uint32_t round = 0; round < 3 && !HasFatalFailure(); ++round) {
    (void)live(*original, a, static_cast<uint32_t>(rng()), 12);
    const Bytes bytes = frozen(*original, a);

    // Another cache, and a second sequence in this one.
    auto other = make_cache(c.config);
    const auto b = other->unfreeze(bytes);
    ASSERT_TRUE(b.ok()) << b.status().to_string();
    const auto beside = original->unfreeze(bytes);
    ASSERT_TRUE(beside.ok()) << beside.status().to_string();
    EXPECT_TRUE(other->verify(*b).ok());
    EXPECT_EQ(frozen(*other, *b), bytes) << "freezing what was unfrozen gives the same bytes";

    const uint32_t life = static_cast<uint32_t>(rng());
    const auto expected = live(*original, a, life, 25);
    EXPECT_TRUE(same_bits(live(*other, *b, life, 25), expected));
    EXPECT_TRUE(same_bits(live(*original, *beside, life, 25), expected));
    EXPECT_EQ(frozen(*other, *b), frozen(*original, a)) << "and so does their whole state afterwards";
    ASSERT_TRUE(original->remove(*beside).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Configs, SnapshotResume, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(Snapshot, EmptySequencesResume) {
  auto cache = make_cache(small_config());
  const SeqId a = cache->add_sequence().value();
  const auto b = cache->unfreeze(frozen(*cache, a));
  ASSERT_TRUE(b.ok()) << b.status().to_string();
  EXPECT_EQ(cache->length(*b).value(), 0u);
  EXPECT_TRUE(same_bits(live(*cache, a, 7, 30), live(*cache, *b, 7, 30)));
}

TEST(Snapshot, LayersOfDifferentLengthResume) {
  auto cache = make_cache(small_config());
  const SeqId a = cache->add_sequence().value();
  std::mt19937 rng(1);
  append(*cache, a, rng, 150);
  const auto rows = gaussian_rows(rng, 40 * 2 * 32);
  ASSERT_TRUE(cache->append(a, 1, RowsView::f32(rows.data(), 40, 2, 32), RowsView::f32(rows.data(), 40, 2, 32)).ok());
  const SeqId b = cache->unfreeze(frozen(*cache, a)).value();
  EXPECT_EQ(cache->length(b, 0).value(), 150u);
  EXPECT_EQ(cache->length(b, 1).value(), 190u);
}

TEST(Snapshot, ForksResumeOnTheirOwn) {
  auto cache = make_cache(small_config("compact"));
  const SeqId a = cache->add_sequence().value();
  (void)live(*cache, a, 3, 40);
  const SeqId fork = cache->fork(a).value();
  (void)live(*cache, fork, 4, 20);
  const Bytes of_a = frozen(*cache, a), of_fork = frozen(*cache, fork);
  const SeqId a2 = cache->unfreeze(of_a).value(), fork2 = cache->unfreeze(of_fork).value();
  EXPECT_TRUE(same_bits(live(*cache, a, 5, 20), live(*cache, a2, 5, 20)));
  EXPECT_TRUE(same_bits(live(*cache, fork, 6, 20), live(*cache, fork2, 6, 20)));
}

TEST(Snapshot, FreezingChangesNothing) {
  auto cache = make_cache(small_config("compact"));
  const SeqId a = cache->add_sequence().value();
  (void)live(*cache, a, 3, 40);
  const MemoryStats before = cache->memory_usage();
  const Bytes bytes = frozen(*cache, a);
  EXPECT_TRUE(same_memory(cache->memory_usage(), before));
  EXPECT_EQ(frozen(*cache, a), bytes);
}

TEST(Snapshot, MemoryAfterLoadingIsThatOfTheOriginal) {
  auto cache = make_cache(small_config("compact"));
  const SeqId a = cache->add_sequence().value();
  std::mt19937 rng(5);
  append(*cache, a, rng, 3000);
  auto other = make_cache(small_config("compact"));
  const SeqId b = other->unfreeze(frozen(*cache, a)).value();
  const MemoryStats x = cache->memory_usage(a).value(), y = other->memory_usage(b).value();
  for (int t = 0; t < kNumTiers; ++t) {
    EXPECT_EQ(x.tier[t].tokens, y.tier[t].tokens);
    EXPECT_EQ(x.tier[t].payload_bytes, y.tier[t].payload_bytes);
    EXPECT_LE(y.tier[t].bytes(), x.tier[t].bytes());
  }
  EXPECT_LE(y.bookkeeping_bytes, x.bookkeeping_bytes);
}

// A big prefill makes a ring much larger than its window; truncating that leaves a ring with few rows, whose capacity still decides
// bits.
TEST(Snapshot, NearlyEmptyRingKeepsItsCapacity) {
  CacheConfig config = small_config("fp16");
  config.tiers.window = 40;
  auto cache = make_cache(config);
  const SeqId a = cache->add_sequence().value();
  std::mt19937 rng(9);
  append(*cache, a, rng, 900);
  ASSERT_TRUE(cache->truncate(a, 5).ok());
  const Bytes bytes = frozen(*cache, a);
  auto other = make_cache(config);
  const auto b = other->unfreeze(bytes);
  ASSERT_TRUE(b.ok()) << b.status().to_string();
  EXPECT_EQ(frozen(*other, *b), bytes);
  EXPECT_TRUE(same_bits(live(*cache, a, 5, 40), live(*other, *b, 5, 40)));
  EXPECT_EQ(frozen(*other, *b), frozen(*cache, a));
}

TEST(Snapshot, SizeGrowsWithTheLengthAndNoFaster) {
  auto cache = make_cache(small_config("compact"));
  std::mt19937 rng(2);
  const auto size_at = [&](uint32_t tokens) {
    const SeqId seq = cache->add_sequence().value();
    append(*cache, seq, rng, tokens);
    return static_cast<double>(frozen(*cache, seq).size());
  };
  const double at1 = size_at(1280), at2 = size_at(2560), at4 = size_at(5120);
  EXPECT_NEAR((at4 - at2) / (at2 - at1), 2.0, 0.02);
  // 2560 archive tokens in 2 layers x 2 heads at 32 channels: 2 bits a value, metadata and 32 bytes a block.
  EXPECT_LT(at4 - at2, 2560 * 4 * 32 * 2 * 4.0 / 8);
  EXPECT_LT(at4, cache->memory_usage().total_bytes);
}

// --- into caches that are configured otherwise

TEST(Snapshot, BlocksLoadWhateverTheTiersOfTheCacheAre) {
  auto from = make_cache(small_config("balanced"));
  const SeqId a = from->add_sequence().value();
  std::mt19937 rng(11);
  append(*from, a, rng, 1000);
  const Bytes bytes = frozen(*from, a);
  std::vector<float> expected;
  attend(*from, a, rng, 3, expected);
  for (const std::string& preset : preset_names()) {
    for (const char* policy : {"none", "h2o"}) {
      SCOPED_TRACE(preset + " " + policy);
      CacheConfig config = small_config(preset);
      config.eviction.policy = policy;
      auto to = make_cache(config);
      const auto b = to->unfreeze(bytes);
      ASSERT_TRUE(b.ok()) << b.status().to_string();
      std::mt19937 again(11);
      append(*from, from->add_sequence().value(), again, 1000);  // brings the generator to the same place
      std::vector<float> got;
      attend(*to, *b, again, 3, got);
      EXPECT_TRUE(same_bits(got, expected));
      (void)live(*to, *b, 12, 60);
      if (std::string(policy) != "none") {
        EXPECT_TRUE(to->evict(*b, 100).ok());
      }
      (void)live(*to, *b, 13, 20);
      EXPECT_TRUE(to->verify(*b).ok());
      ASSERT_TRUE(to->truncate(*b, 3).ok());
      (void)live(*to, *b, 14, 60);
      EXPECT_TRUE(make_cache(config)->unfreeze(frozen(*to, *b)).ok());
    }
  }
}

TEST(Snapshot, SinksOfAnotherNumberSurviveTruncation) {
  CacheConfig few = small_config("compact"), many = small_config("compact");
  few.tiers.sinks = 1;
  many.tiers.sinks = 16;
  auto from = make_cache(few), to = make_cache(many);
  const SeqId a = from->add_sequence().value();
  std::mt19937 rng(21);
  append(*from, a, rng, 400);
  const SeqId b = to->unfreeze(frozen(*from, a)).value();
  std::vector<float> before(9 * 2 * 32), after(before.size());
  const std::vector<uint32_t> positions{0, 1, 2, 3, 4, 5, 6, 7, 8};
  ASSERT_TRUE(to->get(b, 0, positions, before.data(), nullptr).ok());
  ASSERT_TRUE(to->truncate(b, 9).ok());
  EXPECT_EQ(to->positions(b, 0, 0).value(), positions);
  ASSERT_TRUE(to->get(b, 0, positions, after.data(), nullptr).ok());
  EXPECT_TRUE(same_bits(before, after));
  append(*to, b, rng, 300);
  EXPECT_EQ(to->positions(b, 0, 1).value().size(), 309u);
}

TEST(Snapshot, SharedStatisticsCarryOverAndOthersStartAtZero) {
  CacheConfig h2o = small_config("compact");
  h2o.eviction.policy = "h2o";
  CacheConfig none = small_config("compact"), snapkv = h2o;
  snapkv.eviction.policy = "snapkv";
  auto from = make_cache(h2o);
  const SeqId a = from->add_sequence().value();
  (void)live(*from, a, 31, 40);
  const Bytes bytes = frozen(*from, a);
  // Through a cache that keeps no statistics: they are gone, and what is left is what such a cache would have written.
  auto plain = make_cache(none), other = make_cache(snapkv), back = make_cache(h2o);
  const Bytes without = frozen(*plain, plain->unfreeze(bytes).value());
  EXPECT_LT(without.size(), bytes.size());
  EXPECT_TRUE(other->unfreeze(bytes).ok());
  const auto zeroed = back->unfreeze(without);
  ASSERT_TRUE(zeroed.ok()) << zeroed.status().to_string();
  EXPECT_EQ(frozen(*back, *zeroed).size(), bytes.size());
  EXPECT_NE(frozen(*back, *zeroed), bytes);
  EXPECT_EQ(frozen(*back, back->unfreeze(bytes).value()), bytes);
}

// Evict, roll back into the gap, evict again: the tail's rows are consecutive but the next one does not continue them.
TEST(Snapshot, TailThatEndsBeforeTheSequenceGoesOnAtTheRightPosition) {
  CacheConfig config = small_config("fp16");
  config.num_layers = config.num_heads = config.num_kv_heads = 1;
  config.eviction.policy = "h2o";
  config.eviction.protect_recent = 1;
  config.tiers.hot = kAll;
  config.tiers.sinks = 0;
  auto cache = make_cache(config);
  const SeqId a = cache->add_sequence().value();
  std::vector<float> keys(100 * 32), query(32, 1.0f), out(32);
  for (uint32_t t = 10; t < 14; ++t) std::fill_n(keys.begin() + t * 32, 32, 2.0f);  // where attention goes
  ASSERT_TRUE(cache->append(a, 0, RowsView::f32(keys.data(), 100, 1, 32), RowsView::f32(keys.data(), 100, 1, 32)).ok());
  ASSERT_TRUE(cache->attention(a, 0, RowsView::f32(query.data(), 1, 1, 32), out.data()).ok());
  ASSERT_TRUE(cache->evict(a, 6).ok());
  EXPECT_EQ(cache->positions(a, 0, 0).value(), (std::vector<uint32_t>{10, 11, 12, 13, 98, 99}));
  ASSERT_TRUE(cache->truncate(a, 50).ok());
  ASSERT_TRUE(cache->evict(a, 2).ok());
  EXPECT_EQ(cache->positions(a, 0, 0).value(), (std::vector<uint32_t>{12, 13}));
  const SeqId b = cache->unfreeze(frozen(*cache, a)).value();
  for (const SeqId seq : {a, b}) {
    ASSERT_TRUE(cache->append(seq, 0, RowsView::f32(keys.data(), 2, 1, 32), RowsView::f32(keys.data(), 2, 1, 32)).ok());
    EXPECT_EQ(cache->positions(seq, 0, 0).value(), (std::vector<uint32_t>{12, 13, 50, 51}));
  }
}

TEST(Snapshot, InspectTellsWhatIsInIt) {
  CacheConfig config = small_config("balanced");
  config.model = "tiny-модель";
  config.eviction.policy = "h2o";
  auto cache = make_cache(config);
  const SeqId a = cache->add_sequence().value();
  std::mt19937 rng(51);
  append(*cache, a, rng, 1000);
  const Bytes bytes = frozen(*cache, a);
  const auto info = inspect_snapshot(bytes);
  ASSERT_TRUE(info.ok()) << info.status().to_string();
  EXPECT_EQ(info->version, 1u);
  EXPECT_EQ(info->model, config.model);
  EXPECT_EQ(info->num_layers, 2u);
  EXPECT_EQ(info->num_kv_heads, 2u);
  EXPECT_EQ(info->head_dim, 32u);
  EXPECT_EQ(info->hot_type, "fp16");
  EXPECT_EQ(info->length, 1000u);
  EXPECT_NE(info->eviction_signals, 0u);
  EXPECT_EQ(info->file_bytes, bytes.size());
  const MemoryStats memory = cache->memory_usage();
  for (int t = 0; t < kNumTiers; ++t) {
    EXPECT_EQ(info->tier[t].tokens, memory.tier[t].tokens) << t;
    EXPECT_EQ(info->tier[t].bytes, memory.tier[t].payload_bytes) << t;
  }
  EXPECT_NE(std::find(info->codecs.begin(), info->codecs.end(), "even4/mid2 x128"), info->codecs.end());
  EXPECT_EQ(inspect_snapshot("/nonexistent/file.tkv").status().code(), StatusCode::not_found);
}

}  // namespace
}  // namespace tierkv::snapshot
