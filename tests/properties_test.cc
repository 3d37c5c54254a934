// properties_test.cc — the properties that the design documents ask for, by name: growth, fused attention, windows, resuming
// (tract's caches), the CacheManager's behaviours (ruvector-attention), and attention's error over every shape.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "attention_tolerance.h"
#include "base/f16.h"
#include "inspect.h"
#include "reference_cache.h"
#include "tierkv/cache.h"

namespace tierkv::testing {
namespace {

struct Shape {
  uint32_t kv_heads = 2, group = 2, dim = 64, layers = 1;
};

CacheConfig make_config(const Shape& shape, const std::string& settings) {
  CacheConfig c;
  c.num_layers = shape.layers;
  c.num_kv_heads = shape.kv_heads;
  c.num_heads = shape.kv_heads * shape.group;
  c.head_dim = shape.dim;
  const Status status = apply_inline(settings, c);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return c;
}

std::unique_ptr<AdaptiveKVCache> make_cache(const CacheConfig& config) {
  auto made = AdaptiveKVCache::create(config);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return made.ok() ? std::move(made).value() : nullptr;
}

std::vector<float> gaussian(size_t n, uint64_t seed, float size = 1.0f) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<float> out(n);
  for (float& x : out) x = normal(rng);
  return out;
}

// Tokens of [kv heads][dim] rows, appended as they come: what concatenation would hold.
struct Concatenated {
  Shape shape;
  std::vector<float> keys, values;
  uint32_t tokens = 0;

  size_t row() const { return static_cast<size_t>(shape.kv_heads) * shape.dim; }
  // Makes `n` more tokens and appends them to the cache too.
  void grow(AdaptiveKVCache& cache, SeqId seq, uint32_t n, uint64_t seed, uint32_t layer = 0) {
    const auto k = gaussian(n * row(), seed * 2 + 1), v = gaussian(n * row(), seed * 2 + 2);
    const Status status = cache.append(seq, layer, RowsView::f32(k.data(), n, shape.kv_heads, shape.dim),
                                       RowsView::f32(v.data(), n, shape.kv_heads, shape.dim));
    ASSERT_TRUE(status.ok()) << status.to_string();
    keys.insert(keys.end(), k.begin(), k.end());
    values.insert(values.end(), v.begin(), v.end());
    tokens += n;
  }
  // One head's rows, rounded to FP16 as every exact tier holds them.
  ReferenceHead head(uint32_t h) const {
    ReferenceHead rows;
    for (uint32_t t = 0; t < tokens; ++t) {
      ReferenceRow r{t, std::vector<float>(shape.dim), std::vector<float>(shape.dim)};
      for (uint32_t c = 0; c < shape.dim; ++c) {
        r.key[c] = f16_to_f32(f32_to_f16(keys[t * row() + h * shape.dim + c]));
        r.value[c] = f16_to_f32(f32_to_f16(values[t * row() + h * shape.dim + c]));
      }
      rows.push_back(std::move(r));
    }
    return rows;
  }
};

// One head's rows as the cache would use them.
ReferenceHead rows_in(const AdaptiveKVCache& cache, SeqId seq, uint32_t layer, uint32_t head) {
  const CacheConfig& c = cache.config();
  const auto positions = cache.positions(seq, layer, head).value();
  ReferenceHead rows;
  for (const uint32_t p : positions) {
    ReferenceRow r{p, std::vector<float>(c.head_dim), std::vector<float>(c.head_dim)};
    EXPECT_TRUE(
        tiers::read_row(impl_of(cache).env, impl_of(cache).sequences.at(seq)->heads(layer)[head], p, r.key.data(), r.value.data()));
    rows.push_back(std::move(r));
  }
  return rows;
}

// Largest relative error of attention() of `count` newest queries against plain attention over `rows` of each head.
double attention_error(AdaptiveKVCache& cache, SeqId seq, uint32_t count, uint64_t seed,
                       const std::function<ReferenceHead(uint32_t)>& rows, AttentionOptions options = {}) {
  const CacheConfig& c = cache.config();
  const uint32_t heads = c.query_heads(), d = c.head_dim, group = heads / c.num_kv_heads;
  const auto queries = gaussian(static_cast<size_t>(count) * heads * d, seed);
  std::vector<float> out(queries.size(), -1.0f);
  const Status status = cache.attention(seq, 0, RowsView::f32(queries.data(), count, heads, d), out.data(), options);
  EXPECT_TRUE(status.ok()) << status.to_string();
  ReferenceOptions o;
  o.causal = options.causal;
  o.scale = options.scale > 0.0f ? options.scale : 1.0 / std::sqrt(static_cast<double>(d));
  o.softcap = options.softcap;
  o.window = c.layer(0).window;
  const uint32_t first = cache.length(seq, 0).value() - count;
  double worst = 0.0;
  std::vector<double> expected;
  for (uint32_t kv = 0; kv < c.num_kv_heads; ++kv) {
    const ReferenceHead held = rows(kv);
    for (uint32_t q = 0; q < count; ++q) {
      for (uint32_t g = 0; g < group; ++g) {
        const size_t at = (static_cast<size_t>(q) * heads + kv * group + g) * d;
        o.sink_logit = options.sink_logits ? options.sink_logits + kv * group + g : nullptr;
        reference_attention(held, {queries.data() + at, d}, first + q, o, expected);
        worst = std::max(worst, relative_error({out.data() + at, d}, expected, 0.05));
      }
    }
  }
  return worst;
}

// --- tract's caches

TEST(Document003, InPlaceGrowthBitExactWithConcatenation) {
  const Shape shape{3, 1, 48};
  auto cache = make_cache(make_config(shape, "hot=all"));
  const SeqId seq = cache->add_sequence().value();
  Concatenated all{shape, {}, {}};
  for (uint32_t step = 0; step < 60; ++step) {
    all.grow(*cache, seq, step % 7 == 0 ? 33 : 1 + step % 3, step);
    for (uint32_t h = 0; h < shape.kv_heads; ++h) {
      const HotView view = cache->hot_view(seq, 0, h).value();
      ASSERT_EQ(view.rows, all.tokens);
      ASSERT_EQ(view.first_position, 0u);
      for (uint32_t t = 0; t < all.tokens; ++t) {
        for (uint32_t c = 0; c < shape.dim; ++c) {
          const size_t at = t * all.row() + h * shape.dim + c;
          ASSERT_EQ(view.keys[static_cast<size_t>(t) * shape.dim + c], f32_to_f16(all.keys[at]));
          ASSERT_EQ(view.values[static_cast<size_t>(t) * shape.dim + c], f32_to_f16(all.values[at]));
        }
      }
    }
  }
}

TEST(Document003, AtMostTwelveReallocationsIn1024Appends) {
  for (const char* settings : {"hot=all", "hot=64,warm=448,archive=rot2,sinks=4"}) {
    const Shape shape{1, 1, 64};
    auto cache = make_cache(make_config(shape, settings));
    const SeqId seq = cache->add_sequence().value();
    Concatenated all{shape, {}, {}};
    for (uint32_t t = 0; t < 1024; ++t) all.grow(*cache, seq, 1, t);
    EXPECT_LE(impl_of(*cache).sequences.at(seq)->heads(0)[0].tail.reallocations(), 12u) << settings;
  }
}

TEST(Document003, ViewsAreZeroCopyUntilTheBufferGrows) {
  const Shape shape{1, 1, 64};
  auto cache = make_cache(make_config(shape, "hot=all"));
  const SeqId seq = cache->add_sequence().value();
  Concatenated all{shape, {}, {}};
  all.grow(*cache, seq, 17, 1);  // capacity 32
  const HotView before = cache->hot_view(seq, 0, 0).value();
  all.grow(*cache, seq, 10, 2);
  const HotView after = cache->hot_view(seq, 0, 0).value();
  EXPECT_EQ(before.keys, after.keys);
  EXPECT_EQ(after.rows, 27u);
}

TEST(Document003, FusedEqualsConcatPlusPlainAttention) {
  for (const uint32_t group : {1u, 4u}) {
    for (const char* settings : {"hot=all", "hot=16,warm=32,warm_codec=fp16,archive=fp16,sinks=3,warm_block=16,archive_block=32"}) {
      for (const bool causal : {true, false}) {
        const Shape shape{2, group, 64};
        auto cache = make_cache(make_config(shape, settings));
        const SeqId seq = cache->add_sequence().value();
        Concatenated all{shape, {}, {}};
        AttentionOptions options;
        options.causal = causal;
        const auto rows = [&](uint32_t h) { return all.head(h); };
        all.grow(*cache, seq, 70, 1);
        EXPECT_LT(attention_error(*cache, seq, 70, 9, rows, options), attention_tolerance())
            << "prefill, group " << group << ", causal " << causal << ", " << settings;
        for (uint32_t t = 0; t < 40; ++t) {
          all.grow(*cache, seq, 1, 100 + t);
          ASSERT_LT(attention_error(*cache, seq, 1, 200 + t, rows, options), attention_tolerance())
              << "decode " << t << ", causal " << causal << ", " << settings;
        }
      }
    }
  }
}

TEST(Document003, RingBufferHoldsLastWindow) {
  const Shape shape{1, 1, 32};
  for (const uint32_t slack : {0u, 5u}) {
    auto config = make_config(shape, "hot=64,window=24,sinks=4");
    config.window_slack = slack;
    auto cache = make_cache(config);
    const SeqId seq = cache->add_sequence().value();
    Concatenated all{shape, {}, {}};
    const void* buffer = nullptr;
    uint32_t moves = 0;
    for (uint32_t t = 0; t < 500; ++t) {
      all.grow(*cache, seq, 1, t);
      const auto positions = cache->positions(seq, 0, 0).value();
      const uint32_t expected = std::min(t + 1, 24 + slack);
      ASSERT_EQ(positions.size(), expected);
      ASSERT_EQ(positions.front(), t + 1 - expected);
      ASSERT_EQ(positions.back(), t);
      const auto& tail = impl_of(*cache).sequences.at(seq)->heads(0)[0].tail;
      if (t > 100 && buffer != tail.buffer_identity()) ++moves;
      buffer = tail.buffer_identity();
    }
    EXPECT_LE(moves, 1u) << "a full ring never moves";
    EXPECT_LE(cache->memory_usage()[Tier::hot].bytes(), 2u * 32 * 2 * (24 + slack) + 4096) << "memory is bounded by the window";
  }
}

TEST(Document003, WindowedAttentionEqualsOrderedLastW) {
  // A ring, and blocks that are dropped; a prefill chunk larger than the window, then decode.
  for (const char* settings :
       {"hot=64,window=20,window_slack=0",
        "hot=4,warm=16,warm_codec=fp16,archive=fp16,window=20,window_slack=0,warm_block=16,archive_block=32"}) {
    const Shape shape{2, 2, 32};
    auto cache = make_cache(make_config(shape, settings));
    const SeqId seq = cache->add_sequence().value();
    Concatenated all{shape, {}, {}};
    const auto rows = [&](uint32_t h) { return all.head(h); };  // every row there ever was: the window's mask picks the last W
    for (const uint32_t chunk : {7u, 90u, 1u, 1u, 33u, 200u, 1u}) {
      all.grow(*cache, seq, chunk, chunk + all.tokens);
      ASSERT_LT(attention_error(*cache, seq, chunk, 5, rows), attention_tolerance())
          << chunk << " tokens up to " << all.tokens << ", " << settings;
    }
    for (uint32_t t = 0; t < 60; ++t) {
      all.grow(*cache, seq, 1, 1000 + t);
      ASSERT_LT(attention_error(*cache, seq, 1, 6 + t, rows), attention_tolerance()) << "decode " << t << ", " << settings;
    }
  }
}

TEST(Document003, ResumeIsBitExact) {
  const Shape shape{2, 2, 64};
  for (const char* settings : {"hot=all", "balanced,hot=16,warm=64,warm_block=32,archive_block=64", "hot=64,window=40",
                               "balanced,hot=16,warm=32,warm_block=16,archive_block=32,evict=snapkv,max_len=90"}) {
    auto cache = make_cache(make_config(shape, settings));
    const SeqId seq = cache->add_sequence().value();
    Concatenated all{shape, {}, {}};
    all.grow(*cache, seq, 150, 1);
    const auto q = gaussian(4 * 64, 3);
    std::vector<float> out[2] = {std::vector<float>(4 * 64), std::vector<float>(4 * 64)};
    ASSERT_TRUE(cache->attention(seq, 0, RowsView::f32(q.data(), 1, 4, 64), out[0].data()).ok());
    auto frozen = cache->freeze(seq);
    ASSERT_TRUE(frozen.ok()) << frozen.status().to_string();
    auto other = make_cache(make_config(shape, settings));
    const SeqId resumed = other->unfreeze(*frozen).value();
    // Both go on the same way: rows, attention and evictions stay equal to the bit.
    for (uint32_t t = 0; t < 80; ++t) {
      Concatenated copy = all;
      all.grow(*cache, seq, 1 + t % 3, 50 + t);
      copy.grow(*other, resumed, 1 + t % 3, 50 + t);
      const auto query = gaussian(4 * 64, 500 + t);
      ASSERT_TRUE(cache->attention(seq, 0, RowsView::f32(query.data(), 1, 4, 64), out[0].data()).ok());
      ASSERT_TRUE(other->attention(resumed, 0, RowsView::f32(query.data(), 1, 4, 64), out[1].data()).ok());
      ASSERT_EQ(0, std::memcmp(out[0].data(), out[1].data(), out[0].size() * sizeof(float))) << settings << ", step " << t;
    }
    EXPECT_EQ(sequence_digest(*cache, seq), sequence_digest(*other, resumed)) << settings;
  }
}

// --- ruvector-attention: the CacheManager's behaviours

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

TEST(Document001, AppendAndGet) {
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

TEST(Document001, EmptyCache) {
  auto cache = make_cache(manager("h2o"));
  const SeqId seq = cache->add_sequence().value();
  EXPECT_EQ(cache->length(seq).value(), 0u);
  EXPECT_TRUE(cache->positions(seq, 0, 0).value().empty());
  const uint32_t position = 0;
  EXPECT_EQ(cache->get(seq, 0, {&position, 1}, nullptr, nullptr).code(), StatusCode::out_of_range);
  EXPECT_TRUE(cache->evict(seq, 1).ok());
  EXPECT_TRUE(cache->truncate(seq, 0).ok());
}

TEST(Document001, AutoEvictionOnAppend) {
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

TEST(Document001, OneLongAppendStaysWithinTheLimitToo) {
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

TEST(Document001, H2OEvictsTheLowestAttention) {
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

TEST(Document001, SlidingWindowKeepsSinksAndTheNewest) {
  auto config = manager("sliding_window");
  ASSERT_TRUE(apply_inline("sinks=2,evict_window=3,max_len=100", config).ok());
  auto cache = make_cache(config);
  const SeqId seq = cache->add_sequence().value();
  for (uint32_t i = 0; i < 10; ++i) append_constant(*cache, seq, static_cast<float>(i), static_cast<float>(i));
  EXPECT_EQ(cache->positions(seq, 0, 0).value().size(), 10u);
  ASSERT_TRUE(cache->evict(seq, 5).ok());
  EXPECT_EQ(cache->positions(seq, 0, 0).value(), (std::vector<uint32_t>{0, 1, 7, 8, 9}));
}

TEST(Document001, SingleEntryOperations) {
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

// --- attention over every shape

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
