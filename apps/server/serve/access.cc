// access.cc — keys and origins.
#include "serve/access.h"

#include <algorithm>

#include "serve/api_error.h"
#include "serve/service.h"

namespace tierkv::serve {

namespace {

bool is_open(const std::string& path) { return path == "/health" || path == "/v1/health" || path == "/ready" || path == "/"; }

// Whether a page of the origin was let in (--cors). The reply says so to the browser, which asks before it sends a key or JSON.
bool allow_origin(const Settings& settings, const std::string& origin, HttpReply& reply) {
  const auto& allowed = settings.cors;
  const bool any = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
  if (origin.empty() || (!any && std::find(allowed.begin(), allowed.end(), origin) == allowed.end())) return false;
  reply.headers.emplace_back("Access-Control-Allow-Origin", any ? "*" : origin);
  reply.headers.emplace_back("Vary", "Origin");
  return true;
}

void check_key(const Settings& settings, const HttpRequest& request) {
  if (settings.keys.empty() || is_open(request.path()) || request.method() == "OPTIONS") return;
  const std::string bearer = bearer_key(request.header("Authorization"));
  if (!is_known_key(bearer.empty() ? request.header("X-Api-Key") : bearer, settings.keys)) {
    throw ApiError(401, "a key is needed: Authorization: Bearer KEY", "", "invalid_api_key");
  }
}

}  // namespace

void add_access(HttpServer& server, Service& service) {
  const Settings& settings = service.settings();
  server.before([&settings](const HttpRequest& request, HttpReply& reply) {
    const std::string host = request.header("Host"), origin = request.header("Origin");
    const bool allowed = allow_origin(settings, origin, reply);
    if (!allowed && is_foreign_origin(origin, host)) throw ApiError(403, "pages of another origin may not use this server");
    // A name that some page made point here is not this server's.
    if (settings.keys.empty() && is_local_name(settings.http.host) && !host.empty() && !is_local_name(host_name(host))) {
      throw ApiError(403, "this server answers to localhost alone, not to " + host_name(host).substr(0, 64));
    }
    check_key(settings, request);
  });
  if (settings.cors.empty()) return;
  server.route("OPTIONS", ".*", [](const HttpRequest&, HttpReply& reply) {
    reply.status = 204;
    reply.headers = {{"Access-Control-Allow-Methods", "GET, POST, PUT"},
                     {"Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key"},
                     {"Access-Control-Max-Age", "600"}};
  });
}

}  // namespace tierkv::serve
