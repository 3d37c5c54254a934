// Blocks that queries look at again come back by themselves, as promote() would bring them, and go when nobody looks.
#include "cache/look_back.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/folder_testing.h"
#include "cache/topics_testing.h"
#include "policy/promotion.h"
#include "tierkv/cache.h"

namespace tierkv::cache {
namespace {

constexpr uint32_t kKvHeads = 2, kDim = 64, kTokens = 2048;

// Every 500 tokens are about something else: queries like a key look at its topic.
class LookBack : public ::testing::Test {
 protected:
  std::unique_ptr<AdaptiveKVCache> cache(const std::string& more) const {
    CacheConfig config;
    config.num_layers = 1, config.num_heads = config.num_kv_heads = kKvHeads, config.head_dim = kDim;
    const std::string spec = "hot=32,warm=64,warm_codec=fp16,archive=rot2,sinks=4,cold_codec=fp16,cold=" + folder.path() + more;
    EXPECT_TRUE(apply_inline(spec, config).ok()) << spec;
    auto made = AdaptiveKVCache::create(config);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }
  SeqId read(AdaptiveKVCache& cache) const {
    const SeqId seq = cache.add_sequence().value();
    const RowsView view = RowsView::f32(rows.data(), kTokens, kKvHeads, kDim);
    EXPECT_TRUE(cache.append(seq, 0, view, view).ok());
    EXPECT_TRUE(cache.flush().ok());
    return seq;
  }
  // Attends as the newest token, `times` times, with the key of a position as query.
  std::vector<float> ask(AdaptiveKVCache& cache, SeqId seq, uint32_t position, uint32_t times, bool observe = true) const {
    const size_t width = kKvHeads * kDim;
    std::vector<float> out(width);
    AttentionOptions options;
    options.scale = 0.5f;
    options.observe = observe;
    for (uint32_t i = 0; i < times; ++i) {
      const Status status =
          cache.attention(seq, 0, RowsView::f32(rows.data() + position * width, 1, kKvHeads, kDim), out.data(), options);
      EXPECT_TRUE(status.ok()) << status.to_string();
    }
    return out;
  }
  static uint64_t promoted(const AdaptiveKVCache& cache, SeqId seq) { return cache.memory_usage(seq).value().promoted_tokens; }

  TestFolder folder;
  const std::vector<float> rows = testing::rows_by_topic(kTokens, kKvHeads* kDim);
};

TEST_F(LookBack, WhatIsLookedAtComesBackAsPromoteBringsIt) {
  const auto automatic = cache(",promote=8"), byhand = cache("");
  const SeqId seq = read(*automatic), other = read(*byhand);
  EXPECT_EQ(promoted(*automatic, seq), 0u);
  ask(*automatic, seq, 700, 8 * kLookEvery);
  ASSERT_GT(promoted(*automatic, seq), 0u);
  EXPECT_TRUE(automatic->verify(seq).ok());
  // Of every row that came back, what get() says is the original, and of the others the archive's.
  ASSERT_TRUE(byhand->promote(other).ok());
  const uint32_t archived = kTokens - 300;
  std::vector<uint32_t> positions;
  for (uint32_t p = 4; p < archived; ++p) positions.push_back(p);
  const auto keys = [&](const AdaptiveKVCache& of, SeqId id) {
    std::vector<float> found(positions.size() * kKvHeads * kDim), values(found.size());
    EXPECT_TRUE(of.get(id, 0, positions, found.data(), values.data()).ok());
    return found;
  };
  const std::vector<float> now = keys(*automatic, seq), best = keys(*byhand, other);
  uint64_t same = 0;
  for (size_t at = 0; at < now.size(); at += kDim) same += std::equal(&now[at], &now[at] + kDim, &best[at]);
  EXPECT_EQ(same, promoted(*automatic, seq));
}

TEST_F(LookBack, WhatNobodyLooksAtGoesAndTheArchiveIsAsItWas) {
  const auto looking = cache(",promote=8"), plain = cache("");
  const SeqId seq = read(*looking), other = read(*plain);
  const uint64_t before = looking->memory_usage(seq).value().total_bytes;
  ask(*looking, seq, 700, 8 * kLookEvery);
  ASSERT_GT(promoted(*looking, seq), 0u);
  ask(*looking, seq, kTokens - 1, 40 * kLookEvery);  // the newest topic, most of which is not archived
  ask(*looking, seq, 1900, 40 * kLookEvery);
  const uint64_t left = promoted(*looking, seq);
  EXPECT_LE(left, 8u * 128 * kKvHeads);
  ASSERT_TRUE(looking->demote(seq).ok());
  EXPECT_EQ(looking->memory_usage(seq).value().total_bytes, before);
  EXPECT_EQ(ask(*looking, seq, 700, 1, false), ask(*plain, other, 700, 1, false)) << "to the bit";
}

TEST_F(LookBack, NoMoreThanAllowed) {
  const auto few = cache(",promote=1");
  const SeqId seq = read(*few);
  for (const uint32_t topic : {700u, 1200u, 200u, 700u}) {
    ask(*few, seq, topic, 6 * kLookEvery);
    EXPECT_LE(promoted(*few, seq), 128u * kKvHeads) << topic;
  }
  EXPECT_GT(promoted(*few, seq), 0u);
}

TEST_F(LookBack, ACallThatDoesNotObserveMovesNothing) {
  const auto made = cache(",promote=8");
  const SeqId seq = read(*made);
  ask(*made, seq, 700, 8 * kLookEvery, false);
  EXPECT_EQ(promoted(*made, seq), 0u);
}

TEST_F(LookBack, AReportAndALookBackAgree) {
  const auto made = cache(",promote=8");
  const SeqId seq = read(*made);
  std::vector<float> out(kKvHeads * kDim);
  for (uint32_t i = 0; i < 2 * kLookEvery; ++i) {
    MassReport report;
    AttentionOptions options;
    options.mass = &report;
    ASSERT_TRUE(
        made->attention(seq, 0, RowsView::f32(rows.data() + 700 * out.size(), 1, kKvHeads, kDim), out.data(), options).ok());
    double mass = 0.0;
    for (const BlockMass& block : report.blocks) mass += block.mass;
    EXPECT_NEAR(mass, kKvHeads, 1e-2);
  }
}

// What is only better gives way before a token is refused.
TEST_F(LookBack, PromotedBlocksGiveWayToTokens) {
  const auto measured = cache(",promote=64");
  read(*measured);
  const uint64_t bytes = measured->memory_usage().total_bytes;
  const auto tight = cache(",promote=64,byte_budget=" + std::to_string(bytes + 48 * 1024));
  const SeqId seq = read(*tight);
  ask(*tight, seq, 700, 8 * kLookEvery);
  ASSERT_GT(promoted(*tight, seq), 0u);
  const RowsView view = RowsView::f32(rows.data(), 64, kKvHeads, kDim);
  Status status;
  for (int i = 0; i < 20 && status.ok() && promoted(*tight, seq) != 0; ++i) status = tight->append(seq, 0, view, view);
  EXPECT_EQ(promoted(*tight, seq), 0u) << status.to_string();
}

TEST_F(LookBack, NeedsAFile) {
  CacheConfig config;
  config.num_layers = 1, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
  config.cold.promote = 4;
  EXPECT_EQ(AdaptiveKVCache::create(config).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace tierkv::cache
