// kv_report.h — what the cache says about itself, as JSON: one source for /v1/kv/…, /metrics and gRPC.
//
// Fields of thresholds have ADR-004's names: model_id, layer, hot_boundary and warm_boundary (tokens, counted from the newest),
// archive_bits, archive_quantizer, quality_target and quality_score (the mean of the last 100 measurements).
//
// Threads: any; the scheduler's thread is asked for what belongs to it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "serve/metrics.h"
#include "serve/service.h"

namespace tierkv::serve {

Gauges gauges(Service& service);
nlohmann::json memory_json(Service& service);
nlohmann::json conversations_json(Service& service);
nlohmann::json quality_json(Service& service);
nlohmann::json thresholds_json(Service& service);
// All of them, and what is counted: {"memory": …, "quality": …, "thresholds": …, "conversations": …, "activity": …}.
nlohmann::json kv_report(Service& service);

// One measurement of quality ({"score": 0.95}), by which the cache adapts its tiers. ApiError 400 for anything else.
void add_measurement(Service& service, const nlohmann::json& body);
// New thresholds: for all layers, or in "layers" for those that it names. What is not named stays; blocks that exist stay as they
// are. ApiError 400 for what the cache cannot have, and then nothing has changed.
void set_thresholds(Service& service, const nlohmann::json& body);

}  // namespace tierkv::serve
