// access.cc — keys and origins.
#include "serve/access.h"

#include "serve/api_error.h"
#include "serve/service.h"

namespace tierkv::serve {

bool is_known_key(std::string_view key, const std::vector<std::string>& keys) {
  unsigned found = 0;
  for (const std::string& one : keys) {
    unsigned different = key.size() != one.size();
    // All of it, whatever was found.
    for (size_t i = 0; i < one.size(); ++i) {
      const unsigned char theirs = i < key.size() ? static_cast<unsigned char>(key[i]) : 0;
      different |= static_cast<unsigned>(theirs ^ static_cast<unsigned char>(one[i]));
    }
    found |= static_cast<unsigned>(different == 0);
  }
  return found != 0;
}

std::string bearer_key(const std::string& header) {
  constexpr std::string_view kScheme = "Bearer ";
  return header.starts_with(kScheme) ? header.substr(kScheme.size()) : "";
}

std::string host_name(const std::string& header) {
  if (header.starts_with('[')) return header.substr(1, header.find(']') - 1);
  return header.substr(0, header.rfind(':'));
}

bool is_foreign_origin(const std::string& origin, const std::string& host) {
  if (origin.empty()) return false;
  const size_t scheme = origin.find("://");
  return scheme == std::string::npos || origin.substr(scheme + 3) != host;
}

bool is_local_name(const std::string& name) { return name == "localhost" || name == "::1" || name.starts_with("127."); }

void add_access(HttpServer& server, Service& service) {
  const Settings& settings = service.settings();
  server.before([&settings](const HttpRequest& request, HttpReply&) {
    const std::string host = request.header("Host");
    if (is_foreign_origin(request.header("Origin"), host)) {
      throw ApiError(403, "pages of another origin may not use this server");
    }
    // A name that some page made point here is not this server's.
    if (settings.keys.empty() && is_local_name(settings.http.host) && !host.empty() && !is_local_name(host_name(host))) {
      throw ApiError(403, "this server answers to localhost alone, not to " + host_name(host).substr(0, 64));
    }
    if (settings.keys.empty()) return;
    const std::string& path = request.path();
    if (path == "/health" || path == "/v1/health" || path == "/ready" || path == "/") return;
    const std::string bearer = bearer_key(request.header("Authorization"));
    if (!is_known_key(bearer.empty() ? request.header("X-Api-Key") : bearer, settings.keys)) {
      throw ApiError(401, "a key is needed: Authorization: Bearer KEY", "", "invalid_api_key");
    }
  });
}

}  // namespace tierkv::serve
