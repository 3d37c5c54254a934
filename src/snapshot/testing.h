// testing.h — what the snapshot tests share: small caches, a random life for a sequence, and ways to tamper with bytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "snapshot/snapshot.h"
#include "tierkv/cache.h"

namespace tierkv::snapshot::testing {

using Bytes = std::vector<std::byte>;

inline CacheConfig small_config(const std::string& preset = "balanced") {
  CacheConfig config;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 32;
  EXPECT_TRUE(apply_preset(preset, config).ok()) << preset;
  return config;
}

inline std::unique_ptr<AdaptiveKVCache> make_cache(const CacheConfig& config) {
  auto cache = AdaptiveKVCache::create(config);
  EXPECT_TRUE(cache.ok()) << cache.status().to_string();
  return cache.ok() ? std::move(cache).value() : nullptr;
}

inline std::vector<float> gaussian_rows(std::mt19937& rng, size_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(rng);
  return out;
}

inline void append(AdaptiveKVCache& cache, SeqId seq, std::mt19937& rng, uint32_t tokens) {
  const CacheConfig& c = cache.config();
  for (uint32_t l = 0; l < c.num_layers; ++l) {
    const auto keys = gaussian_rows(rng, static_cast<size_t>(tokens) * c.num_kv_heads * c.head_dim);
    const auto values = gaussian_rows(rng, keys.size());
    const Status status = cache.append(seq, l, RowsView::f32(keys.data(), tokens, c.num_kv_heads, c.head_dim),
                                       RowsView::f32(values.data(), tokens, c.num_kv_heads, c.head_dim));
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
}

// Outputs of the newest `queries` tokens in every layer are added to `out`.
inline void attend(AdaptiveKVCache& cache, SeqId seq, std::mt19937& rng, uint32_t queries, std::vector<float>& out,
                   bool observe = true) {
  const CacheConfig& c = cache.config();
  AttentionOptions options;
  options.observe = observe;
  for (uint32_t l = 0; l < c.num_layers; ++l) {
    const auto rows = gaussian_rows(rng, static_cast<size_t>(queries) * c.query_heads() * c.head_dim);
    const size_t at = out.size();
    out.resize(at + rows.size());
    const Status status =
        cache.attention(seq, l, RowsView::f32(rows.data(), queries, c.query_heads(), c.head_dim), out.data() + at, options);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
}

// A random stretch of a sequence's life; the same seed does the same. Returns every output and every live position on the way.
inline std::vector<float> live(AdaptiveKVCache& cache, SeqId seq, uint32_t seed, int steps, uint32_t largest_append = 90) {
  std::mt19937 rng(seed);
  std::vector<float> out;
  for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
    const uint32_t kind = rng() % 8;
    const uint32_t length = cache.length(seq).value();
    if (kind == 0 && length > 8) {
      const Status status = cache.truncate(seq, length - 1 - rng() % 6);
      EXPECT_TRUE(status.ok() || status.code() == StatusCode::failed_precondition) << status.to_string();
    } else if (kind == 1 && cache.config().eviction.policy != "none" && length > 40) {
      EXPECT_TRUE(cache.evict(seq, 30 + rng() % 200).ok());
    } else if (kind == 2) {
      EXPECT_TRUE(cache.flush().ok());
    } else {
      append(cache, seq, rng, kind < 5 ? 1 + rng() % largest_append : 1);
    }
    const uint32_t now = cache.length(seq).value();
    if (now) attend(cache, seq, rng, 1 + rng() % std::min(now, 5u), out);
  }
  for (uint32_t l = 0; l < cache.config().num_layers; ++l) {
    for (uint32_t h = 0; h < cache.config().num_kv_heads; ++h) {
      const std::vector<uint32_t> positions = cache.positions(seq, l, h).value();
      for (const uint32_t p : positions) out.push_back(static_cast<float>(p));
    }
  }
  return out;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline Bytes frozen(const AdaptiveKVCache& cache, SeqId seq) {
  auto bytes = cache.freeze(seq);
  EXPECT_TRUE(bytes.ok()) << bytes.status().to_string();
  return bytes.ok() ? std::move(bytes).value() : Bytes{};
}

inline void put(Bytes& bytes, size_t at, uint64_t value, size_t width) {
  for (size_t i = 0; i < width; ++i) bytes.at(at + i) = static_cast<std::byte>(value >> (8 * i));
}

// Makes length and checksum right again, so that what was changed is judged by itself.
inline void reseal(Bytes& bytes) {
  put(bytes, 24, bytes.size(), 8);
  const size_t content = bytes.size() - format::kTrailerBytes;
  put(bytes, content, checksum(std::span(bytes).first(content)), 8);
}

inline bool same_memory(const MemoryStats& a, const MemoryStats& b) {
  return std::memcmp(a.tier, b.tier, sizeof a.tier) == 0 && a.bookkeeping_bytes == b.bookkeeping_bytes &&
         a.free_bytes == b.free_bytes && a.total_bytes == b.total_bytes && a.peak_bytes == b.peak_bytes &&
         a.fp16_bytes == b.fp16_bytes;
}

}  // namespace tierkv::snapshot::testing
