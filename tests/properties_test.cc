// Attention over every shape against double precision, and what threads, forks and truncation must not change.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "attention_tolerance.h"
#include "property_testing.h"

namespace tierkv::testing {
namespace {

struct Numbers {
  uint32_t dim, group;
};
class AttentionShapes : public ::testing::TestWithParam<Numbers> {};

TEST_P(AttentionShapes, StaysNearDoublePrecision) {
  const auto [dim, group] = GetParam();
  const Shape shape{2, group, dim};
  for (const char* settings : {"hot=all", "hot=16,warm=32,warm_codec=rot4,archive=rot2,sinks=2,warm_block=16,archive_block=32"}) {
    auto cache = make_cache(make_config(shape, settings));
    const SeqId seq = cache->add_sequence().value();
    Concatenated all{shape, {}, {}};
    all.grow(*cache, seq, 130, dim + group);
    const auto rows = [&](uint32_t h) { return rows_in(*cache, seq, 0, h); };
    const std::vector<float> logits = gaussian(static_cast<size_t>(2) * group, 3);
    AttentionOptions plain, capped, scaled, sunk, all_at_once;
    capped.softcap = all_at_once.softcap = 5.0f;
    scaled.scale = all_at_once.scale = 0.3f;
    sunk.sink_logits = all_at_once.sink_logits = logits.data();
    all_at_once.causal = false;
    for (const AttentionOptions& options : {plain, capped, scaled, sunk, all_at_once}) {
      EXPECT_LT(attention_error(*cache, seq, 3, 77, rows, options), attention_tolerance())
          << settings << ", softcap " << options.softcap << ", scale " << options.scale;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AttentionShapes,
                         ::testing::Values(Numbers{32, 1}, Numbers{32, 71}, Numbers{64, 3}, Numbers{64, 4}, Numbers{80, 4},
                                           Numbers{80, 1}, Numbers{96, 8}, Numbers{128, 4}, Numbers{128, 8}, Numbers{256, 1},
                                           Numbers{256, 3}),
                         [](const auto& info) {
                           return "dim" + std::to_string(info.param.dim) + "_group" + std::to_string(info.param.group);
                         });

TEST(Attention, MassSumsToQueriesTimesGroup) {
  const Shape shape{2, 3, 64};
  auto cache = make_cache(make_config(shape, "hot=16,warm=32,warm_codec=rot4,archive=rot2,sinks=2,warm_block=16,archive_block=32"));
  const SeqId seq = cache->add_sequence().value();
  Concatenated all{shape, {}, {}};
  all.grow(*cache, seq, 140, 5);
  const uint32_t queries = 9;
  const auto q = gaussian(static_cast<size_t>(queries) * 6 * 64, 6);
  std::vector<float> out(q.size());
  MassReport mass;
  mass.want_tokens = true;
  AttentionOptions options;
  options.mass = &mass;
  ASSERT_TRUE(cache->attention(seq, 0, RowsView::f32(q.data(), queries, 6, 64), out.data(), options).ok());
  for (uint32_t h = 0; h < 2; ++h) {
    double blocks = 0.0, tokens = 0.0;
    for (const BlockMass& block : mass.blocks) blocks += block.kv_head == h ? block.mass : 0.0;
    for (uint32_t t = 0; t < 140; ++t) tokens += mass.tokens[h * 140 + t];
    EXPECT_NEAR(blocks, queries * 3.0, 1e-3);
    EXPECT_NEAR(tokens, queries * 3.0, 1e-3);
  }
  EXPECT_EQ(mass.tokens.size(), 2u * 140);
  bool tier_seen[kNumTiers] = {};
  for (const BlockMass& block : mass.blocks) tier_seen[static_cast<int>(block.tier)] = true;
  for (int t = 0; t < kNumTiers; ++t) EXPECT_TRUE(tier_seen[t]) << tier_name(static_cast<Tier>(t));
}

TEST(Attention, ReportingMassDoesNotChangeTheAnswer) {
  const Shape shape{2, 2, 64};
  auto cache = make_cache(make_config(shape, "balanced"));
  const SeqId seq = cache->add_sequence().value();
  Concatenated all{shape, {}, {}};
  all.grow(*cache, seq, 200, 5);
  const auto q = gaussian(4 * 64, 6);
  std::vector<float> out(q.size()), again(q.size());
  MassReport mass;
  AttentionOptions options;
  ASSERT_TRUE(cache->attention(seq, 0, RowsView::f32(q.data(), 1, 4, 64), out.data(), options).ok());
  options.mass = &mass;
  ASSERT_TRUE(cache->attention(seq, 0, RowsView::f32(q.data(), 1, 4, 64), again.data(), options).ok());
  EXPECT_EQ(out, again);
}

TEST(Attention, ThreadsDoNotChangeTheAnswer) {
  const Shape shape{3, 2, 64};
  std::vector<float> out[2];
  for (const uint32_t threads : {1u, 3u}) {
    auto config = make_config(shape, "balanced,hot=32,warm=64");
    config.threads = threads;
    auto cache = make_cache(config);
    const SeqId seq = cache->add_sequence().value();
    Concatenated all{shape, {}, {}};
    all.grow(*cache, seq, 300, 5);
    const auto q = gaussian(static_cast<size_t>(50) * 6 * 64, 6);
    out[threads > 1].resize(q.size());
    ASSERT_TRUE(cache->attention(seq, 0, RowsView::f32(q.data(), 50, 6, 64), out[threads > 1].data()).ok());
  }
  EXPECT_EQ(out[0], out[1]);
}

TEST(Fork, ChangesOfOneSideAreNeverSeenByTheOther) {
  const Shape shape{1, 1, 64};
  auto cache = make_cache(
      make_config(shape, "hot=16,warm=32,warm_codec=kivi8-g16,archive=kivi8-g16,sinks=2,warm_block=16,archive_block=32"));
  const SeqId seq = cache->add_sequence().value();
  Concatenated all{shape, {}, {}};
  all.grow(*cache, seq, 100, 5);
  const uint64_t before = sequence_digest(*cache, seq);
  const uint64_t bytes = cache->memory_usage().total_bytes;
  const SeqId copy = cache->fork(seq).value();
  EXPECT_EQ(sequence_digest(*cache, copy), before);
  EXPECT_EQ(cache->memory_usage().total_bytes, bytes) << "a fork shares every block";
  Concatenated other = all;
  other.grow(*cache, copy, 70, 6);
  ASSERT_TRUE(cache->truncate(copy, 20).ok());
  other.grow(*cache, copy, 3, 8);
  EXPECT_EQ(sequence_digest(*cache, seq), before);
  ASSERT_TRUE(cache->remove(seq).ok());
  EXPECT_EQ(cache->length(copy).value(), 23u);
  EXPECT_TRUE(cache->verify(copy).ok());
}

TEST(Truncate, ThenGrowingAgainEqualsNeverHavingGrown) {
  const Shape shape{1, 1, 64};
  const char* settings = "hot=32,warm=32,warm_codec=fp16,archive=fp16,sinks=4,warm_block=16,archive_block=32";
  for (const uint32_t to : {0u, 1u, 3u, 4u, 20u, 99u}) {
    auto cache = make_cache(make_config(shape, settings));
    const SeqId seq = cache->add_sequence().value();
    Concatenated all{shape, {}, {}};
    all.grow(*cache, seq, 100, 5);
    ASSERT_TRUE(cache->truncate(seq, to).ok());
    all.keys.resize(to * all.row());
    all.values.resize(to * all.row());
    all.tokens = to;
    all.grow(*cache, seq, 90, 6);
    EXPECT_LT(attention_error(*cache, seq, 90, 9, [&](uint32_t h) { return all.head(h); }), attention_tolerance()) << to;
    // The first tokens are sinks again, whatever was cut.
    EXPECT_EQ(cache->memory_usage()[Tier::sink].tokens, 4u) << to;
  }
}

}  // namespace
}  // namespace tierkv::testing
