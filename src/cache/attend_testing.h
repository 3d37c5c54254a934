// attend_testing.h — what the tests of attention calls share: caches of random rows, and their queries.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tierkv/cache.h"

namespace tierkv::cache::testing {

constexpr uint32_t kKvHeads = 2, kGroup = 2, kHeads = kKvHeads * kGroup, kDim = 32;

inline std::vector<float> random_rows(size_t count, uint32_t heads, uint32_t seed, float size = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<float> rows(count * heads * kDim);
  for (float& x : rows) x = normal(random);
  return rows;
}

inline std::unique_ptr<AdaptiveKVCache> make_cache(const std::string& spec, uint32_t threads = 1) {
  CacheConfig config;
  config.num_layers = 1;
  config.num_kv_heads = kKvHeads;
  config.num_heads = kHeads;
  config.head_dim = kDim;
  config.threads = threads;
  const Status applied = apply_spec(spec, config);
  EXPECT_TRUE(applied.ok()) << spec << ": " << applied.to_string();
  auto made = AdaptiveKVCache::create(config);
  EXPECT_TRUE(made.ok()) << spec << ": " << made.status().to_string();
  return std::move(made).value();
}

inline Status append_rows(AdaptiveKVCache& cache, SeqId seq, uint32_t tokens, const std::vector<float>& keys,
                          const std::vector<float>& values) {
  return cache.append(seq, 0, RowsView::f32(keys.data(), tokens, kKvHeads, kDim),
                      RowsView::f32(values.data(), tokens, kKvHeads, kDim));
}

// A new sequence of `tokens` random tokens.
inline SeqId add_filled(AdaptiveKVCache& cache, uint32_t tokens, uint32_t seed) {
  const SeqId seq = cache.add_sequence().value();
  const Status status =
      append_rows(cache, seq, tokens, random_rows(tokens, kKvHeads, 2 * seed), random_rows(tokens, kKvHeads, 2 * seed + 1));
  EXPECT_TRUE(status.ok()) << status.to_string();
  return seq;
}

inline RowsView query_view(const std::vector<float>& queries) {
  return RowsView::f32(queries.data(), static_cast<uint32_t>(queries.size() / (kHeads * kDim)), kHeads, kDim);
}

}  // namespace tierkv::cache::testing
