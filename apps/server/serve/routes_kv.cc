// routes_kv.cc — what the cache says about itself: /metrics, and /v1/kv/….
#include <nlohmann/json.hpp>

#include "serve/api_error.h"
#include "serve/json_input.h"
#include "serve/kv_report.h"
#include "serve/service.h"
#include "serve/store_text.h"

namespace tierkv::serve {

extern const char* const kPage;  // page.html

namespace {

using nlohmann::json;

// Whoever changes what everybody gets needs a key.
void require_key(const Service& service) {
  if (service.settings().keys.empty()) throw ApiError(403, "to change thresholds the server needs an --api-key");
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
  const auto put = [&](const char* path, void (*change)(Service&, const json&), json (*value)(Service&)) {
    server.route("PUT", path, [&service, change, value](const HttpRequest& request, HttpReply& reply) {
      require_key(service);
      change(service, parse_object(request.body()));
      reply.body = to_text(value(service));
    });
  };
  put("/v1/kv/quality", add_measurement, quality_json);
  put("/v1/kv/thresholds", set_thresholds, thresholds_json);
  server.route("GET", "/metrics", [&service](const HttpRequest&, HttpReply& reply) {
    reply.type = "text/plain; version=0.0.4";
    PrefixStore* const store = service.scheduler().store();
    reply.body = prometheus_text(service.metrics().counts(), gauges(service));
    reply.body += store_metrics(store ? store->counts() : StoreCounts());
  });
}

}  // namespace tierkv::serve
