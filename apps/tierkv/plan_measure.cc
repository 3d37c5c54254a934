// plan_measure.cc — fills caches and reads their books.
#include "plan_measure.h"

#include <algorithm>
#include <memory>
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

// A cache of one layer and one KV head will do, unless tables of the whole model are in play: they give every head its own bits.
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

// A prompt arrives in pieces no longer than the hot tail, so that a tail never grows beyond what decoding needs.
uint32_t piece_of(const CacheConfig& config) {
  uint32_t piece = 256;
  for (uint32_t l = 0; l < config.num_layers; ++l) {
    const LayerConfig layer = config.layer(l);
    if (layer.hot != kAll) piece = std::min(piece, std::max(layer.hot, 32u));
    if (layer.window != 0) piece = std::min(piece, std::max(config.window_slack, 1u));
  }
  return piece;
}

// A cache and one sequence in it, which is read as a model reads: a piece is appended, and a query attends to it in every layer.
// Without queries rows that may be kept better would wait in the warm tier for some.
class Filling {
 public:
  Filling(const CacheConfig& config, const CalibrationPtr& calibration)
      : config_(config),
        cache_(take(AdaptiveKVCache::create(config, calibration))),
        seq_(take(cache_->add_sequence())),
        piece_(piece_of(config)),
        data_(rows(std::max(piece_ * config.num_kv_heads, config.num_heads), config.head_dim)),
        out_(static_cast<size_t>(config.num_heads) * config.head_dim) {}

  void fill(uint64_t until) {
    while (done_ < until) {
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(piece_, until - done_));
      const RowsView piece = RowsView::f32(data_.data(), count, config_.num_kv_heads, config_.head_dim);
      const RowsView query = RowsView::f32(data_.data(), 1, config_.num_heads, config_.head_dim);
      for (uint32_t l = 0; l < config_.num_layers; ++l) {
        if (interrupted()) throw Cancelled();
        check(cache_->append(seq_, l, piece, piece));
        check(cache_->attention(seq_, l, query, out_.data()));
      }
      done_ += count;
    }
  }

  Measured measured() const { return books(*cache_); }

 private:
  CacheConfig config_;
  std::unique_ptr<AdaptiveKVCache> cache_;
  SeqId seq_;
  uint32_t piece_;
  std::vector<float> data_, out_;
  uint64_t done_ = 0;
};

// What all layers and heads of that cache take.
Measured measure(const CacheConfig& config, uint64_t tokens, const CalibrationPtr& calibration) {
  Filling filling(config, calibration);
  // Past kMeasured what is left of a whole number of blocks is measured, and the blocks are multiplied.
  const uint64_t step = 2048;
  const uint64_t steps = tokens > kMeasured ? (tokens - kMeasured + step - 1) / step : 0;
  filling.fill(tokens - steps * step);
  Measured at = filling.measured();
  if (steps == 0) return at;
  filling.fill(tokens - steps * step + step);
  const Measured next = filling.measured();
  for (int t = 0; t < kNumTiers; ++t) {
    at.tokens[t] += (next.tokens[t] - at.tokens[t]) * static_cast<double>(steps);
    at.bytes[t] += (next.bytes[t] - at.bytes[t]) * static_cast<double>(steps);
  }
  at.bookkeeping += (next.bookkeeping - at.bookkeeping) * static_cast<double>(steps);
  return at;
}

// `times` of what was measured: heads that are alike, in a model of `all` heads in all layers.
void add(const Measured& one, double times, double all, SequencePlan& plan) {
  for (int t = 0; t < kNumTiers; ++t) {
    plan.tier[t].tokens += one.tokens[t] * times / all;
    plan.tier[t].bytes += one.bytes[t] * times;
  }
  plan.bookkeeping_bytes += one.bookkeeping * times;
}

}  // namespace

SequencePlan measure_sequence(const CacheConfig& config, uint64_t tokens, const CalibrationPtr& calibration) {
  SequencePlan plan;
  const double heads = config.num_kv_heads, all = heads * config.num_layers;
  if (calibration) add(measure(measured_config(config, {}, true), tokens, calibration), 1, all, plan);
  std::vector<std::pair<LayerConfig, Measured>> known;
  for (uint32_t l = 0; l < config.num_layers; ++l) {
    const LayerConfig layer = config.layer(l);
    const uint64_t held = layer.window == 0 ? tokens : std::min<uint64_t>(tokens, layer.window);
    plan.fp16_bytes += 4.0 * static_cast<double>(held) * heads * config.head_dim;
    if (calibration) continue;
    auto found = std::find_if(known.begin(), known.end(), [&](const auto& item) { return item.first == layer; });
    if (found == known.end()) {
      known.emplace_back(layer, measure(measured_config(config, layer, false), tokens, nullptr));
      found = known.end() - 1;
    }
    add(found->second, heads, all, plan);
  }
  plan.total_bytes = plan.bookkeeping_bytes;
  for (const PlanTier& tier : plan.tier) plan.total_bytes += tier.bytes;
  return plan;
}

}  // namespace tierkv::cli
