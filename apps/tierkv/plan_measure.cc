// plan_measure.cc — fills caches of one head and reads their books.
#include "plan_measure.h"

#include <algorithm>
#include <map>
#include <vector>

#include "engine_names.h"
#include "interrupt.h"
#include "tierkv/cache.h"

namespace tierkv::cli {
namespace {

// Rows with the habits that matter for size: none. Any finite numbers take the same bytes.
std::vector<float> rows(uint32_t tokens, uint32_t head_dim) {
  std::vector<float> data(static_cast<size_t>(tokens) * head_dim);
  uint32_t state = 12345;
  for (float& x : data) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<float>(state >> 8) * (2.0f / (1u << 24)) - 1.0f;
  }
  return data;
}

struct Measured {
  double tokens[kNumTiers] = {}, bytes[kNumTiers] = {};
  double bookkeeping = 0;
};

Measured books(AdaptiveKVCache& cache) {
  const MemoryStats stats = cache.memory_usage();
  Measured result;
  for (int t = 0; t < kNumTiers; ++t) {
    result.tokens[t] = static_cast<double>(stats.tier[t].tokens);
    result.bytes[t] = static_cast<double>(stats.tier[t].bytes());
  }
  result.bookkeeping = static_cast<double>(stats.bookkeeping_bytes);
  return result;
}

// A cache of one layer and one KV head will do, unless tables of the whole model are in play: then one layer of all is filled.
CacheConfig measured_config(const CacheConfig& model, const LayerConfig& layer, bool whole) {
  CacheConfig config = model;
  config.byte_budget = 0;
  config.threads = 1;
  if (whole) return config;
  config.num_layers = config.num_heads = config.num_kv_heads = 1;
  config.tiers = layer;
  config.overrides.clear();
  return config;
}

// What one KV head of a layer takes.
Measured measure(const CacheConfig& model, uint32_t layer_index, uint64_t tokens, const CalibrationPtr& calibration) {
  const LayerConfig layer = model.layer(layer_index);
  const CacheConfig config = measured_config(model, layer, calibration != nullptr);
  const uint32_t target = calibration ? layer_index : 0, heads = config.num_kv_heads;
  const auto cache = take(AdaptiveKVCache::create(config, calibration));
  const SeqId seq = take(cache->add_sequence());
  const double before = books(*cache).bookkeeping;  // of all layers alike
  // A prompt arrives in pieces no longer than the hot tail, so that a tail never grows beyond what decoding needs.
  uint32_t chunk = layer.hot == kAll ? 256 : std::clamp<uint32_t>(layer.hot, 32, 256);
  if (layer.window != 0) chunk = std::min(chunk, std::max(config.window_slack, 1u));
  const std::vector<float> data = rows(chunk * heads, config.head_dim);
  uint64_t done = 0;
  auto fill = [&](uint64_t until) {
    while (done < until) {
      if (interrupted()) throw Cancelled();
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(chunk, until - done));
      const RowsView view = RowsView::f32(data.data(), count, heads, config.head_dim);
      check(cache->append(seq, target, view, view));
      done += count;
    }
  };
  const auto of_one_head = [&] {
    Measured all = books(*cache);
    for (int t = 0; t < kNumTiers; ++t) all.tokens[t] /= heads, all.bytes[t] /= heads;
    all.bookkeeping = (all.bookkeeping - before) / heads + before / heads / config.num_layers;
    return all;
  };
  // Past kMeasured what is left of a whole number of blocks is measured, and the blocks are multiplied.
  const uint64_t step = 2048;
  const uint64_t steps = tokens > kMeasured ? (tokens - kMeasured + step - 1) / step : 0;
  fill(tokens - steps * step);
  Measured at = of_one_head();
  if (steps == 0) return at;
  fill(tokens - steps * step + step);
  const Measured next = of_one_head();
  for (int t = 0; t < kNumTiers; ++t) {
    at.tokens[t] += (next.tokens[t] - at.tokens[t]) * static_cast<double>(steps);
    at.bytes[t] += (next.bytes[t] - at.bytes[t]) * static_cast<double>(steps);
  }
  at.bookkeeping += (next.bookkeeping - at.bookkeeping) * static_cast<double>(steps);
  return at;
}

}  // namespace

SequencePlan measure_sequence(const CacheConfig& config, uint64_t tokens, const CalibrationPtr& calibration) {
  SequencePlan plan;
  std::vector<std::pair<LayerConfig, Measured>> known;
  for (uint32_t l = 0; l < config.num_layers; ++l) {
    const LayerConfig layer = config.layer(l);
    auto found = std::find_if(known.begin(), known.end(), [&](const auto& item) { return item.first == layer; });
    if (found == known.end()) {
      known.emplace_back(layer, measure(config, l, tokens, calibration));
      found = known.end() - 1;
    }
    const Measured& one = found->second;
    for (int t = 0; t < kNumTiers; ++t) {
      plan.tier[t].tokens += one.tokens[t] / config.num_layers;
      plan.tier[t].bytes += one.bytes[t] * config.num_kv_heads;
    }
    plan.bookkeeping_bytes += one.bookkeeping * config.num_kv_heads;
    const uint64_t held = layer.window == 0 ? tokens : std::min<uint64_t>(tokens, layer.window);
    plan.fp16_bytes += 4.0 * static_cast<double>(held) * config.num_kv_heads * config.head_dim;
  }
  plan.total_bytes = plan.bookkeeping_bytes;
  for (const PlanTier& tier : plan.tier) plan.total_bytes += tier.bytes;
  return plan;
}

}  // namespace tierkv::cli
