// store_text.h — what the prefix store has and did, for Prometheus and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "serve/metrics.h"
#include "serve/prefix_store.h"

namespace tierkv::serve {

// Lines for /metrics: prefixes by where they were found, and the store's own. Without a store its values are 0.
std::string store_metrics(const Counts& counts, const StoreCounts& store);
// The body of /v1/kv/store; null: there is none.
nlohmann::json store_json(PrefixStore* store);

}  // namespace tierkv::serve
