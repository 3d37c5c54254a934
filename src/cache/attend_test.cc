// What attention promises of its numbers and its memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cache/attend_testing.h"
#include "quant/isa.h"

namespace tierkv::cache {
namespace {

using namespace cache::testing;

// Runs a body on every instruction set there is, and leaves the best one on.
template <class Body>
void on_every_isa(const Body& body) {
  const std::string before(quant::active_isa());
  for (const std::string_view isa : quant::available_isas()) {
    SCOPED_TRACE(std::string(isa));
    ASSERT_TRUE(quant::set_active_isa(isa));
    body();
  }
  ASSERT_TRUE(quant::set_active_isa(before));
}

bool all_finite(const std::vector<float>& rows) {
  return std::all_of(rows.begin(), rows.end(), [](float x) { return std::isfinite(x); });
}

TEST(Attention, EnormousQueriesAreRefusedOrTheOutputIsFinite) {
  const char* specs[] = {"fp16", "hot=32,warm=64,archive=rot2", "hot=32,warm=64,archive=kivi2/mid2", "int8",
                         "hot=32,warm=64,archive=turbo3"};
  on_every_isa([&] {
    for (const char* spec : specs) {
      SCOPED_TRACE(spec);
      auto cache = make_cache(spec);
      const SeqId seq = cache->add_sequence().value();
      std::vector<float> rows = random_rows(400, kKvHeads, 3);
      for (float& x : rows) x = x < 0 ? -60000.0f : 60000.0f;
      ASSERT_TRUE(append_rows(*cache, seq, 400, rows, rows).ok());
      for (const uint32_t count : {1u, 20u}) {
        for (const float size : {1e20f, 9e24f, 1.1e25f, 1e30f, 1e38f, 3.4e38f}) {
          for (const float scale : {0.0f, 1.0f, 1e3f}) {
            std::vector<float> queries = random_rows(count, kHeads, 4), out(queries.size());
            for (float& x : queries) x = x < 0 ? -size : size;
            AttentionOptions options;
            options.scale = scale;
            const Status status = cache->attention(seq, 0, query_view(queries), out.data(), options);
            const bool fits = size * std::max(scale, 1.0f) <= 1e25f;
            EXPECT_EQ(status.code(), fits ? StatusCode::ok : StatusCode::invalid_argument) << size << " x " << scale;
            if (status.ok()) {
              EXPECT_TRUE(all_finite(out)) << size << " x " << scale;
            }
          }
        }
      }
    }
  });
}

TEST(Attention, OverflowOfEnormousBf16RowsIsAnErrorAndPoisonsNoStatistics) {
  on_every_isa([&] {
    auto cache = make_cache("hot=64,warm=64,archive=rot2,hot_type=bf16,eviction.policy=h2o,max_seq_len=1000");
    const SeqId seq = cache->add_sequence().value();
    const std::vector<float> huge(20 * kKvHeads * kDim, 2e38f), small(huge.size(), 1.0f);
    ASSERT_TRUE(append_rows(*cache, seq, 20, huge, small).ok());
    const std::vector<float> query(kHeads * kDim, 100.0f);
    std::vector<float> out(query.size());
    MassReport mass;
    mass.want_tokens = true;
    AttentionOptions options;
    for (MassReport* report : {static_cast<MassReport*>(nullptr), &mass}) {
      for (const bool observe : {false, true}) {
        options.mass = report;
        options.observe = observe;
        EXPECT_EQ(cache->attention(seq, 0, query_view(query), out.data(), options).code(), StatusCode::invalid_argument);
      }
    }
    // Small queries fit, and what the policy had seen before is still numbers.
    const std::vector<float> tiny(query.size(), 1e-3f);
    ASSERT_TRUE(cache->attention(seq, 0, query_view(tiny), out.data(), options).ok());
    EXPECT_TRUE(all_finite(out));
    EXPECT_TRUE(all_finite(mass.tokens));
    ASSERT_TRUE(cache->evict(seq, 10).ok());
    EXPECT_EQ(cache->positions(seq, 0, 0).value().size(), 10u);
  });
}

TEST(Attention, AWindowedLayerIsNotReadCoarselyForWhatItCannotSee) {
  // The same newest tokens after 8,192 others and after 4,096: the window shows no more of one than of the other.
  const char* spec = "hot=32,warm=64,archive=rot2,window=1024";
  constexpr uint32_t kTokens = 9000, kLess = 4096;
  const std::vector<float> keys = random_rows(kTokens, kKvHeads, 1), values = random_rows(kTokens, kKvHeads, 2);
  const std::vector<float> queries = random_rows(2, kHeads, 3);
  std::vector<std::vector<float>> out;
  for (const uint32_t skipped : {0u, kLess}) {
    auto cache = make_cache(spec);
    const SeqId seq = cache->add_sequence().value();
    const size_t from = static_cast<size_t>(skipped) * kKvHeads * kDim;
    for (uint32_t t = skipped; t < kTokens; t += 8) {
      const size_t at = static_cast<size_t>(t) * kKvHeads * kDim;
      ASSERT_GE(at, from);
      ASSERT_TRUE(cache
                      ->append(seq, 0, RowsView::f32(keys.data() + at, 8, kKvHeads, kDim),
                               RowsView::f32(values.data() + at, 8, kKvHeads, kDim))
                      .ok());
    }
    ASSERT_GT(cache->memory_usage()[Tier::archive].tokens, 0u);
    out.emplace_back(queries.size());
    ASSERT_TRUE(cache->attention(seq, 0, query_view(queries), out.back().data()).ok());
  }
  EXPECT_EQ(out[0], out[1]);
}

TEST(Attention, RowsInADevicesMemoryAreRefused) {
  auto cache = make_cache("fp16");
  const SeqId seq = add_filled(*cache, 5, 1);
  const std::vector<float> queries = random_rows(1, kHeads, 2), row = random_rows(1, kKvHeads, 3);
  std::vector<float> out(queries.size());
  RowsView view = query_view(queries), rows = RowsView::f32(row.data(), 1, kKvHeads, kDim);
  EXPECT_TRUE(cache->attention(seq, 0, view, out.data()).ok());
  view.place = MemoryPlace::device;
  EXPECT_EQ(cache->attention(seq, 0, view, out.data()).code(), StatusCode::unsupported);
  RowsView elsewhere = rows;
  elsewhere.place = MemoryPlace::device;
  EXPECT_EQ(cache->append(seq, 0, elsewhere, rows).code(), StatusCode::unsupported);
  EXPECT_EQ(cache->append(seq, 0, rows, elsewhere).code(), StatusCode::unsupported);
  EXPECT_EQ(cache->length(seq).value(), 5u);
}

}  // namespace
}  // namespace tierkv::cache
