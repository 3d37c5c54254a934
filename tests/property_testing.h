// property_testing.h — what the tests of whole caches share: small caches, the rows that concatenation would hold, and attention's
// error against the plain computation.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attention_tolerance.h"
#include "base/f16.h"
#include "inspect.h"
#include "reference_cache.h"
#include "tierkv/cache.h"

namespace tierkv::testing {

struct Shape {
  uint32_t kv_heads = 2, group = 2, dim = 64, layers = 1;
};

inline CacheConfig make_config(const Shape& shape, const std::string& settings) {
  CacheConfig c;
  c.num_layers = shape.layers;
  c.num_kv_heads = shape.kv_heads;
  c.num_heads = shape.kv_heads * shape.group;
  c.head_dim = shape.dim;
  const Status status = apply_inline(settings, c);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return c;
}

inline std::unique_ptr<AdaptiveKVCache> make_cache(const CacheConfig& config) {
  auto made = AdaptiveKVCache::create(config);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return made.ok() ? std::move(made).value() : nullptr;
}

inline std::vector<float> gaussian(size_t n, uint64_t seed, float size = 1.0f) {
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
inline ReferenceHead rows_in(const AdaptiveKVCache& cache, SeqId seq, uint32_t layer, uint32_t head) {
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
inline double attention_error(AdaptiveKVCache& cache, SeqId seq, uint32_t count, uint64_t seed,
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

}  // namespace tierkv::testing
