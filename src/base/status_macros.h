// status_macros.h — hand an error up, and build one from pieces.
#pragma once

#include <sstream>
#include <string>

#include "tierkv/status.h"

#define TIERKV_RETURN_IF_ERROR(expr)                                                           \
  do {                                                                                         \
    if (::tierkv::Status tierkv_status_ = (expr); !tierkv_status_.ok()) return tierkv_status_; \
  } while (false)

#define TIERKV_CONCAT_(a, b) a##b
#define TIERKV_CONCAT(a, b) TIERKV_CONCAT_(a, b)
#define TIERKV_ASSIGN_OR_RETURN(target, expr) TIERKV_ASSIGN_OR_RETURN_(TIERKV_CONCAT(tierkv_result_, __LINE__), target, expr)
#define TIERKV_ASSIGN_OR_RETURN_(result, target, expr) \
  auto result = (expr);                                \
  if (!result.ok()) return result.status();            \
  target = std::move(result).value()

namespace tierkv {

// error(StatusCode::invalid_argument, "head_dim ", 33, " is not supported")
template <class... Parts>
Status error(StatusCode code, const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return Status(code, out.str());
}

}  // namespace tierkv
