#include "tierkv/status.h"

#include "tierkv/stats.h"

namespace tierkv {

const char* status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::ok: return "ok";
    case StatusCode::invalid_argument: return "invalid_argument";
    case StatusCode::not_found: return "not_found";
    case StatusCode::out_of_range: return "out_of_range";
    case StatusCode::resource_exhausted: return "resource_exhausted";
    case StatusCode::failed_precondition: return "failed_precondition";
    case StatusCode::data_loss: return "data_loss";
    case StatusCode::unsupported: return "unsupported";
    case StatusCode::io_error: return "io_error";
    case StatusCode::internal: return "internal";
  }
  return "unknown";
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(status_code_name(code_)) + ": " + message_;
}

const char* tier_name(Tier tier) {
  switch (tier) {
    case Tier::sink: return "sink";
    case Tier::hot: return "hot";
    case Tier::warm: return "warm";
    case Tier::archive: return "archive";
  }
  return "unknown";
}

}  // namespace tierkv
