// store_text.h — what the prefix store has and did, for Prometheus and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "serve/prefix_store.h"

namespace tierkv::serve {

// Lines for /metrics. Without a store its values are 0.
std::string store_metrics(const StoreCounts& store);
// The body of /v1/kv/store; null: there is none.
nlohmann::json store_json(PrefixStore* store);

}  // namespace tierkv::serve
