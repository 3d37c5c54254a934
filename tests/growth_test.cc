// What tract's caches promise, kept here: growth in place, views without copies, windows, and resuming bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "attention_tolerance.h"
#include "property_testing.h"

namespace tierkv::testing {
namespace {

TEST(Growth, InPlaceGrowthBitExactWithConcatenation) {
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

TEST(Growth, AtMostTwelveReallocationsIn1024Appends) {
  for (const char* settings : {"hot=all", "hot=64,warm=448,archive=rot2,sinks=4"}) {
    const Shape shape{1, 1, 64};
    auto cache = make_cache(make_config(shape, settings));
    const SeqId seq = cache->add_sequence().value();
    Concatenated all{shape, {}, {}};
    for (uint32_t t = 0; t < 1024; ++t) all.grow(*cache, seq, 1, t);
    EXPECT_LE(impl_of(*cache).sequences.at(seq)->heads(0)[0].tail.reallocations(), 12u) << settings;
  }
}

TEST(Growth, ViewsAreZeroCopyUntilTheBufferGrows) {
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

TEST(Growth, FusedEqualsConcatPlusPlainAttention) {
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

TEST(Growth, RingBufferHoldsLastWindow) {
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

TEST(Growth, WindowedAttentionEqualsOrderedLastW) {
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

TEST(Growth, ResumeIsBitExact) {
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

}  // namespace
}  // namespace tierkv::testing
