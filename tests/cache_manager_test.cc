// What ruvector-attention's CacheManager does, kept here: append, get, and eviction at a limit, entry by entry.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "property_testing.h"

namespace tierkv::testing {
namespace {

CacheConfig manager(const std::string& policy) {
  return make_config(
      {2, 1, 32},
      "hot=0,warm=all,warm_codec=kivi4-g16,warm_block=16,archive_block=16,sinks=0,protect_recent=1,evict_batch=1,max_len=8,evict=" +
          policy);
}

void append_constant(AdaptiveKVCache& cache, SeqId seq, float key, float value) {
  const uint32_t heads = cache.config().num_kv_heads, d = cache.config().head_dim;
  const std::vector<float> k(static_cast<size_t>(heads) * d, key), v(k.size(), value);
  ASSERT_TRUE(cache.append(seq, 0, RowsView::f32(k.data(), 1, heads, d), RowsView::f32(v.data(), 1, heads, d)).ok());
}

TEST(CacheManager, AppendAndGet) {
  auto cache = make_cache(manager("h2o"));
  const SeqId seq = cache->add_sequence().value();
  append_constant(*cache, seq, 1.0f, -1.0f);
  EXPECT_EQ(cache->length(seq).value(), 1u);
  std::vector<float> keys(64), values(64);
  const uint32_t position = 0;
  ASSERT_TRUE(cache->get(seq, 0, {&position, 1}, keys.data(), values.data()).ok());
  EXPECT_EQ(keys, std::vector<float>(64, 1.0f));
  EXPECT_EQ(values, std::vector<float>(64, -1.0f));
}

TEST(CacheManager, EmptyCache) {
  auto cache = make_cache(manager("h2o"));
  const SeqId seq = cache->add_sequence().value();
  EXPECT_EQ(cache->length(seq).value(), 0u);
  EXPECT_TRUE(cache->positions(seq, 0, 0).value().empty());
  const uint32_t position = 0;
  EXPECT_EQ(cache->get(seq, 0, {&position, 1}, nullptr, nullptr).code(), StatusCode::out_of_range);
  EXPECT_TRUE(cache->evict(seq, 1).ok());
  EXPECT_TRUE(cache->truncate(seq, 0).ok());
}

TEST(CacheManager, AutoEvictionOnAppend) {
  for (const char* policy : {"h2o", "sliding_window", "streaming_llm", "tova", "snapkv", "scissorhands"}) {
    auto cache = make_cache(manager(policy));
    const SeqId seq = cache->add_sequence().value();
    for (uint32_t i = 0; i < 12; ++i) {
      append_constant(*cache, seq, static_cast<float>(i), static_cast<float>(i));
      EXPECT_LE(cache->positions(seq, 0, 0).value().size(), 8u) << policy;
      EXPECT_EQ(cache->positions(seq, 0, 1).value().back(), i) << policy;
    }
    EXPECT_EQ(cache->length(seq).value(), 12u);
    EXPECT_EQ(cache->positions(seq, 0, 0).value().size(), 8u) << policy << ": no more than needed goes";
  }
}

// cache/observe.h: past 16,384 tokens totals are made of every second step.
TEST(CacheManager, OfALongSequenceEverySecondStepIsHeard) {
  constexpr uint32_t kTokens = 16384, kHeard = 100, kUnheard = 200, kDim = 32;
  auto cache = make_cache(make_config({1, 1, kDim}, "hot=all,sinks=0,protect_recent=1,max_len=20000,evict=h2o"));
  const SeqId seq = cache->add_sequence().value();
  std::vector<float> keys(size_t{kTokens} * kDim), values(keys.size(), 1.0f);
  keys[kHeard * kDim] = 30.0f, keys[kUnheard * kDim + 1] = 30.0f;
  const auto rows = [&](const std::vector<float>& x) { return RowsView::f32(x.data(), kTokens, 1, kDim); };
  ASSERT_TRUE(cache->append(seq, 0, rows(keys), rows(values)).ok());
  const auto ask = [&](uint32_t channel, uint32_t position) {
    std::vector<float> query(kDim), out(kDim);
    query[channel] = 10.0f;
    AttentionOptions options;
    options.first_position = position;
    ASSERT_TRUE(cache->attention(seq, 0, RowsView::f32(query.data(), 1, 1, kDim), out.data(), options).ok());
  };
  ask(0, kTokens - 2);
  for (int i = 0; i < 3; ++i) ask(1, kTokens - 1);
  ASSERT_TRUE(cache->evict(seq, 4).ok());
  std::vector<uint32_t> kept = cache->positions(seq, 0, 0).value();
  EXPECT_EQ(std::count(kept.begin(), kept.end(), kHeard), 1);
  EXPECT_EQ(std::count(kept.begin(), kept.end(), kUnheard), 0);
}

TEST(CacheManager, OneLongAppendStaysWithinTheLimitToo) {
  for (const char* sinks : {"0", "4", "6"}) {
    auto config = manager("h2o");
    ASSERT_TRUE(apply_inline(std::string("sinks=") + sinks, config).ok());
    auto cache = make_cache(config);
    const SeqId seq = cache->add_sequence().value();
    Concatenated all{{2, 1, 32}, {}, {}};
    all.grow(*cache, seq, 100, 1);
    EXPECT_LE(cache->positions(seq, 0, 0).value().size(), 8u) << sinks << " sinks";
    EXPECT_EQ(cache->positions(seq, 0, 0).value().back(), 99u);
  }
}

TEST(CacheManager, H2OEvictsTheLowestAttention) {
  auto config = manager("h2o");
  config.max_seq_len = 100;
  auto cache = make_cache(config);
  const SeqId seq = cache->add_sequence().value();
  const float keys[] = {5.0f, 1.0f, 3.0f, 4.0f};  // a query of ones gives them mass in this order
  for (const float k : keys) append_constant(*cache, seq, k / 10.0f, 0.0f);
  const std::vector<float> query(64, 1.0f);
  std::vector<float> out(64);
  ASSERT_TRUE(cache->attention(seq, 0, RowsView::f32(query.data(), 1, 2, 32), out.data()).ok());
  ASSERT_TRUE(cache->evict(seq, 3).ok());
  EXPECT_EQ(cache->positions(seq, 0, 0).value(), (std::vector<uint32_t>{0, 2, 3}));
}

TEST(CacheManager, SlidingWindowKeepsSinksAndTheNewest) {
  auto config = manager("sliding_window");
  ASSERT_TRUE(apply_inline("sinks=2,evict_window=3,max_len=100", config).ok());
  auto cache = make_cache(config);
  const SeqId seq = cache->add_sequence().value();
  for (uint32_t i = 0; i < 10; ++i) append_constant(*cache, seq, static_cast<float>(i), static_cast<float>(i));
  EXPECT_EQ(cache->positions(seq, 0, 0).value().size(), 10u);
  ASSERT_TRUE(cache->evict(seq, 5).ok());
  EXPECT_EQ(cache->positions(seq, 0, 0).value(), (std::vector<uint32_t>{0, 1, 7, 8, 9}));
}

TEST(CacheManager, SingleEntryOperations) {
  auto cache = make_cache(manager("h2o"));
  const SeqId seq = cache->add_sequence().value();
  append_constant(*cache, seq, 0.42f, -0.42f);
  const std::vector<float> query(64, 1.0f);
  std::vector<float> out(64);
  ASSERT_TRUE(cache->attention(seq, 0, RowsView::f32(query.data(), 1, 2, 32), out.data()).ok());
  for (const float x : out) EXPECT_FLOAT_EQ(x, f16_to_f32(f32_to_f16(-0.42f))) << "a softmax of one is the value itself";
  ASSERT_TRUE(cache->evict(seq, 1).ok());
  EXPECT_EQ(cache->positions(seq, 0, 0).value(), std::vector<uint32_t>{0});
}

}  // namespace
}  // namespace tierkv::testing
