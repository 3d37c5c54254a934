// api_error.cc — OpenAI's names for what HTTP's numbers say.
#include "serve/api_error.h"

#include <nlohmann/json.hpp>

namespace tierkv::serve {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 501: return "not_supported_error";
    case 503: return "unavailable_error";
    case 504: return "timeout_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

nlohmann::json or_null(const std::string& text) { return text.empty() ? nlohmann::json() : nlohmann::json(text); }

}  // namespace

nlohmann::json error_json(const ApiError& error) {
  return {{"error",
           {{"message", error.what()},
            {"type", type_of(error.status())},
            {"param", or_null(error.param())},
            {"code", or_null(error.code())}}}};
}

}  // namespace tierkv::serve
