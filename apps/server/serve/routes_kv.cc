// routes_kv.cc — what the cache says about itself: /metrics, and /v1/kv/….
#include <nlohmann/json.hpp>

#include "engine/clock.h"
#include "engine/error.h"
#include "serve/json_input.h"
#include "serve/service.h"
#include "serve/store_text.h"

namespace tierkv::serve {

extern const char* const kPage;  // page.html

namespace {

using nlohmann::json;

Gauges gauges(Service& service) {
  Gauges now;
  now.slots = service.scheduler().options().slots;
  now.busy = service.scheduler().busy();
  now.waiting = service.scheduler().waiting();
  service.scheduler().on_thread([&] {
    now.conversations = service.scheduler().shelf().count();
    now.parked = service.scheduler().shelf().parked();
  });
  now.memory = service.context().cache().memory_usage();
  return now;
}

json tier_json(const TierMemory& tier, uint32_t streams, uint32_t head_dim) {
  return {{"tokens", streams ? tier.tokens / streams : 0},
          {"bytes", tier.bytes()},
          {"payload_bytes", tier.payload_bytes},
          {"overhead_bytes", tier.overhead_bytes},
          {"bits_per_value", tier.bits_per_value(head_dim)}};
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

const char* state_of(const Conversation& one) { return one.busy ? "busy" : one.parked ? "parked" : one.prompt ? "prompt" : "idle"; }

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
  json layers = json::array();
  for (const LayerThresholds& layer : service.context().cache().thresholds()) {
    layers.push_back({{"layer", layers.size()}, {"hot", layer.hot}, {"warm", layer.warm}, {"archive_bits", layer.archive_bits}});
  }
  return {{"layers", layers}};
}

// One measurement of quality, by which the cache adapts its tiers. Whoever may change what everybody gets needs a key.
json adapt(Service& service, const json& body) {
  if (service.settings().keys.empty()) throw ApiError(403, "to change thresholds the server needs an --api-key");
  const auto score = Fields(body).number("score", 0.0, 1.0);
  if (!score) throw ApiError(400, "score is missing: 1 is as good as FP16", "score");
  service.scheduler().on_thread([&] { engine::check(service.context().cache().adapt_thresholds({*score})); });
  return quality_json(service);
}

}  // namespace

// The page needs nothing but this server, and nothing else may be put into it.
void add_page(HttpServer& server) {
  server.route("GET", "/", [](const HttpRequest&, HttpReply& reply) {
    reply.type = "text/html; charset=utf-8";
    reply.headers = {
        {"Content-Security-Policy",
         "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
         "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"},
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"}};
    reply.body = kPage;
  });
}

void add_kv_routes(HttpServer& server, Service& service) {
  const auto get = [&](const char* path, json (*value)(Service&)) {
    server.route("GET", path, [&service, value](const HttpRequest&, HttpReply& reply) { reply.body = to_text(value(service)); });
  };
  get("/v1/kv/memory", memory_json);
  get("/v1/kv/conversations", conversations_json);
  get("/v1/kv/quality", quality_json);
  get("/v1/kv/thresholds", thresholds_json);
  get("/v1/kv/store", [](Service& s) { return store_json(s.scheduler().store()); });
  server.route("PUT", "/v1/kv/quality", [&service](const HttpRequest& request, HttpReply& reply) {
    reply.body = to_text(adapt(service, parse_object(request.body())));
  });
  server.route("GET", "/metrics", [&service](const HttpRequest&, HttpReply& reply) {
    reply.type = "text/plain; version=0.0.4";
    const Counts counts = service.metrics().counts();
    PrefixStore* const store = service.scheduler().store();
    reply.body = prometheus_text(counts, gauges(service)) + store_metrics(counts, store ? store->counts() : StoreCounts());
  });
}

}  // namespace tierkv::serve
