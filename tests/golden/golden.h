// golden.h — the sequences whose snapshots are kept for ever: one list, for the program that wrote the files and the test that
// reads them.
//
// tests/golden/NAME.tkv is a snapshot and NAME.json what attention over it gave when it was written. v1 and v2 are versions of the
// snapshot format: v2 has codecs with tables, or a deep archive, and goes with a calibration (calibration_v1*.tkc); v3 has rows
// that are kept better, with a calibration or without. thresholds_v1
// and session_1 are of the other formats there are. Files are added, never changed: a new format version gets new names here, and
// the old files must go on loading.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tierkv/cache.h"

namespace tierkv::golden {

struct Case {
  std::string name;
  CacheConfig config;
  // The life of the sequence up to its snapshot. False when a call failed.
  std::function<bool(AdaptiveKVCache&, SeqId&)> live;
  std::string calibration = "";  // NAME of calibration_NAME.tkc, for codecs with tables
  double deep_ratio = 0.0;       // above 0: the snapshot has a deep archive in it
};

// Values that any C++ library makes alike: std::normal_distribution is not.
inline std::vector<float> rows(uint32_t seed, size_t n) {
  std::mt19937 rng(seed);
  std::vector<float> out(n);
  for (float& x : out) {
    int sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<int>(rng() >> 24) - 128;
    x = static_cast<float>(sum) / 148.0f;
  }
  return out;
}

inline bool append(AdaptiveKVCache& cache, SeqId seq, uint32_t seed, uint32_t tokens) {
  const CacheConfig& c = cache.config();
  for (uint32_t l = 0; l < c.num_layers; ++l) {
    const size_t n = static_cast<size_t>(tokens) * c.num_kv_heads * c.head_dim;
    const std::vector<float> keys = rows(seed + 2 * l, n), values = rows(seed + 2 * l + 1, n);
    if (!cache
             .append(seq, l, RowsView::f32(keys.data(), tokens, c.num_kv_heads, c.head_dim),
                     RowsView::f32(values.data(), tokens, c.num_kv_heads, c.head_dim))
             .ok()) {
      return false;
    }
  }
  return true;
}

// Outputs of the newest `queries` tokens, layer after layer; empty when a call failed.
inline std::vector<float> attend(AdaptiveKVCache& cache, SeqId seq, uint32_t seed, uint32_t queries, bool observe) {
  const CacheConfig& c = cache.config();
  AttentionOptions options;
  options.observe = observe;
  std::vector<float> out;
  for (uint32_t l = 0; l < c.num_layers; ++l) {
    const std::vector<float> q = rows(seed + l, static_cast<size_t>(queries) * c.query_heads() * c.head_dim);
    std::vector<float> o(q.size());
    if (!cache.attention(seq, l, RowsView::f32(q.data(), queries, c.query_heads(), c.head_dim), o.data(), options).ok()) return {};
    out.insert(out.end(), o.begin(), o.end());
  }
  return out;
}

inline CacheConfig config(const char* preset, uint32_t hot, uint32_t warm, uint32_t sinks) {
  CacheConfig c;
  c.num_layers = 2;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 32;
  (void)apply_preset(preset, c);  // a name from the list of presets
  c.tiers.hot = hot;
  c.tiers.warm = warm;
  c.tiers.sinks = sinks;
  c.warm_block = 16;
  c.archive_block = 32;
  return c;
}

inline std::vector<Case> cases() {
  const auto plain = [](AdaptiveKVCache& cache, SeqId& seq) {
    return append(cache, seq, 100, 180) && !attend(cache, seq, 150, 2, true).empty() && append(cache, seq, 200, 21);
  };
  std::vector<Case> all;
  all.push_back({"v1_balanced", config("balanced", 32, 48, 4), plain});
  all.back().config.model = "golden";
  all.push_back({"v1_kivi", config("kivi2", 32, 48, 4), plain});
  all.back().config.hot_type = "bf16";
  all.push_back({"v1_mixed", config("balanced", 16, 64, 2), plain});
  all.back().config.tiers.warm_codec = "int8/kivi4-g16+s8+clip";
  all.back().config.tiers.archive_codec = "kivi3+had+center/turbo3";
  all.push_back({"v1_ring", config("fp16", 32, kAll, 0), plain});
  all.back().config.tiers.window = 24;
  all.push_back({"v1_evicted", config("balanced", 32, 48, 4), [](AdaptiveKVCache& cache, SeqId& seq) {
                   return append(cache, seq, 100, 180) && !attend(cache, seq, 150, 8, true).empty() && cache.evict(seq, 120).ok() &&
                          append(cache, seq, 200, 25) && !attend(cache, seq, 250, 8, true).empty() && cache.evict(seq, 110).ok() &&
                          cache.truncate(seq, 203).ok();
                 }});
  all.back().config.eviction.policy = "snapkv";
  all.push_back({"v1_forked", config("compact", 16, 32, 4), [](AdaptiveKVCache& cache, SeqId& seq) {
                   if (!append(cache, seq, 100, 160)) return false;
                   const auto fork = cache.fork(seq);
                   if (!fork.ok() || !append(cache, seq, 300, 30)) return false;
                   seq = *fork;
                   return cache.truncate(seq, 150).ok() && append(cache, seq, 200, 50);
                 }});
  const std::pair<const char*, const char*> calibrated[] = {
      {"v2_klt", "klt1.875"}, {"v2_kltk", "kltk1.5/rot3"}, {"v2_kvquant", "kvquant3"}, {"v2_squat", "squat2"}};
  for (const auto& [name, codec] : calibrated) {
    all.push_back({name, config("balanced", 32, 48, 4), plain, "v1"});
    all.back().config.tiers.archive_codec = codec;
  }
  // Rows that are kept better, chosen by what queries gave them.
  const auto looked_at = [](AdaptiveKVCache& cache, SeqId& seq) {
    for (uint32_t i = 0; i < 25; ++i) {
      if (!append(cache, seq, 100 + 10 * i, 8) || attend(cache, seq, 400 + 10 * i, 8, true).empty()) return false;
    }
    return true;
  };
  all.push_back({"v3_better", config("balanced", 32, 48, 4), looked_at});
  all.back().config.tiers.archive_codec = "even3+top3/mid2+top2";
  all.push_back({"v3_klt_better", config("balanced", 32, 48, 4), looked_at, "v1"});
  all.back().config.tiers.archive_codec = "klt1.5+top4";
  all.push_back({"v2_deep", config("balanced", 32, 48, 4), plain, "v1_deep", 8.0});
  all.back().config.num_heads = 2, all.back().config.num_kv_heads = 1;
  return all;
}

inline constexpr uint32_t kQuerySeed = 900, kQueries = 3;

}  // namespace tierkv::golden
