// kv_report.cc — the cache's own figures, with the names that clients read.
#include "serve/kv_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/clock.h"
#include "engine/error.h"
#include "serve/api_error.h"
#include "serve/json_input.h"

namespace tierkv::serve {
namespace {

using nlohmann::json;

json tier_json(const TierMemory& tier, uint32_t streams, uint32_t head_dim) {
  return {{"tokens", streams ? tier.tokens / streams : 0},
          {"bytes", tier.bytes()},
          {"payload_bytes", tier.payload_bytes},
          {"overhead_bytes", tier.overhead_bytes},
          {"bits_per_value", tier.bits_per_value(head_dim)}};
}

const char* state_of(const Conversation& one) { return one.busy ? "busy" : one.parked ? "parked" : one.prompt ? "prompt" : "idle"; }

constexpr int64_t kMostBoundary = 1 << 24;

// The fields of one layer, over what it has.
void change_layer(LayerThresholds& layer, const Fields& fields) {
  const uint32_t warm_end = layer.hot + layer.warm;
  if (const auto hot = fields.whole("hot_boundary", 1, kMostBoundary)) layer.hot = static_cast<uint32_t>(*hot);
  const auto end = static_cast<uint32_t>(fields.whole("warm_boundary", 1, kMostBoundary).value_or(std::max(warm_end, layer.hot)));
  if (end < layer.hot) throw ApiError(400, "warm_boundary must not be smaller than hot_boundary", "warm_boundary");
  layer.warm = end - layer.hot;
  if (const auto bits = fields.whole("archive_bits", 1, 8)) layer.archive_bits = static_cast<uint32_t>(*bits);
}

void refuse_unknown(const json& object, std::initializer_list<const char*> known) {
  for (const auto& [name, value] : object.items()) {
    if (std::find_if(known.begin(), known.end(), [&](const char* one) { return name == one; }) == known.end()) {
      throw ApiError(400, name.substr(0, 64) + " cannot be set here", name.substr(0, 64));
    }
  }
}

std::vector<LayerThresholds> changed(std::vector<LayerThresholds> layers, const json& body) {
  refuse_unknown(body, {"hot_boundary", "warm_boundary", "archive_bits", "layers"});
  const Fields fields(body);
  for (LayerThresholds& layer : layers) change_layer(layer, fields);
  const json* list = fields.find("layers");
  if (list == nullptr) return layers;
  if (!list->is_array()) throw ApiError(400, "layers must be a list", "layers");
  for (const json& one : *list) {
    if (!one.is_object()) throw ApiError(400, "layers must be a list of objects", "layers");
    refuse_unknown(one, {"layer", "hot_boundary", "warm_boundary", "archive_bits", "archive_quantizer"});
    const auto number = Fields(one).whole("layer", 0, static_cast<int64_t>(layers.size()) - 1);
    if (!number) throw ApiError(400, "a layer needs its number", "layers");
    change_layer(layers[static_cast<size_t>(*number)], Fields(one));
  }
  return layers;
}

}  // namespace

Gauges gauges(Service& service) {
  Gauges now;
  now.slots = service.scheduler().options().slots;
  now.busy = service.scheduler().busy();
  now.waiting = service.scheduler().waiting();
  service.scheduler().on_thread([&] {
    now.conversations = service.scheduler().shelf().count();
    now.parked = service.scheduler().shelf().parked();
  });
  const llama::ModelShape& shape = service.engine().shape();
  now.memory = service.context().cache().memory_usage();
  now.streams = shape.layers * shape.kv_heads;
  now.quality = service.context().cache().quality_metrics();
  now.version = TIERKV_VERSION;
  return now;
}

json memory_json(Service& service) {
  const MemoryStats memory = service.context().cache().memory_usage();
  const llama::ModelShape& shape = service.engine().shape();
  const uint32_t streams = shape.layers * shape.kv_heads;
  json tiers;
  for (int i = 0; i < kNumTiers; ++i) tiers[tier_name(static_cast<Tier>(i))] = tier_json(memory.tier[i], streams, shape.head_dim);
  return {{"tiers", tiers},
          {"parked", {{"tokens", streams ? memory.parked_tokens / streams : 0}, {"bytes", memory.parked_bytes}}},
          {"bookkeeping_bytes", memory.bookkeeping_bytes},
          {"free_bytes", memory.free_bytes},
          {"total_bytes", memory.total_bytes},
          {"peak_bytes", memory.peak_bytes},
          {"budget_bytes", memory.budget_bytes},
          {"table_bytes", memory.table_bytes},
          {"resident_bytes", memory.resident_bytes()},
          {"fp16_bytes", memory.fp16_bytes},
          {"compression", memory.compression()},
          {"micro_batch_bytes", service.context().host().micro_batch_bytes()}};
}

json conversations_json(Service& service) {
  json list = json::array();
  service.scheduler().on_thread([&] {
    AdaptiveKVCache& cache = service.context().cache();
    const auto& all = service.scheduler().shelf().all();
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].tokens.empty()) continue;
      json one = {
          {"id", i}, {"tokens", all[i].tokens.size()}, {"state", state_of(all[i])}, {"idle_s", engine::now() - all[i].last_used}};
      if (const auto id = service.context().host().sequence(static_cast<int32_t>(i)); id.ok()) {
        if (const auto memory = cache.memory_usage(*id); memory.ok()) one["bytes"] = memory->total_bytes;
      }
      list.push_back(std::move(one));
    }
  });
  return list;
}

json quality_json(Service& service) {
  const QualityMetrics quality = service.context().cache().quality_metrics();
  const LearningReport learning = service.context().cache().learning();
  return {{"samples", quality.samples},         {"mean", quality.mean},
          {"recent_mean", quality.recent_mean}, {"target", quality.target},
          {"adaptations", quality.adaptations}, {"archive", service.context().cache().archive_codec(0)},
          {"learning", learning.sentence}};
}

json thresholds_json(Service& service) {
  AdaptiveKVCache& cache = service.context().cache();
  const QualityMetrics quality = cache.quality_metrics();
  json layers = json::array();
  for (const LayerThresholds& layer : cache.thresholds()) {
    const auto number = static_cast<uint32_t>(layers.size());
    layers.push_back({{"layer", number},
                      {"hot_boundary", layer.hot},
                      {"warm_boundary", layer.hot + layer.warm},
                      {"archive_bits", layer.archive_bits},
                      {"archive_quantizer", cache.archive_codec(number)}});
  }
  return {{"model_id", service.model_name()},
          {"quality_target", quality.target},
          {"quality_score", quality.recent_mean},
          {"layers", layers}};
}

json kv_report(Service& service) {
  const Counts counts = service.metrics().counts();
  return {{"memory", memory_json(service)},
          {"quality", quality_json(service)},
          {"thresholds", thresholds_json(service)},
          {"conversations", conversations_json(service)},
          {"activity",
           {{"slots", service.scheduler().options().slots},
            {"running", service.scheduler().busy()},
            {"waiting", service.scheduler().waiting()},
            {"requests", counts.requests},
            {"prompt_tokens", counts.prompt_tokens},
            {"cached_tokens", counts.cached_tokens},
            {"written_tokens", counts.written_tokens}}}};
}

void add_measurement(Service& service, const json& body) {
  const auto score = Fields(body).number("score", 0.0, 1.0);
  if (!score) throw ApiError(400, "score is missing: 1 is as good as FP16", "score");
  service.scheduler().on_thread([&] { engine::check(service.context().cache().adapt_thresholds({*score})); });
}

void set_thresholds(Service& service, const json& body) {
  service.scheduler().on_thread([&] {
    AdaptiveKVCache& cache = service.context().cache();
    const Status status = cache.set_thresholds(changed(cache.thresholds(), body));
    if (!status.ok()) throw ApiError(status.code() == StatusCode::internal ? 500 : 400, status.message(), "layers");
  });
}

}  // namespace tierkv::serve
