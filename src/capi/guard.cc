#include "capi/guard.h"

#include <cstring>

namespace tierkv::capi {
namespace {

// A fixed buffer: remembering why memory ran out must not need memory.
thread_local char message[1024] = "";

}  // namespace

const char* last_error() noexcept { return message; }

int finish_literal(StatusCode code, const char* text) noexcept {
  const size_t length = std::strlen(text);
  const size_t kept = length < sizeof message ? length : sizeof message - 1;
  std::memcpy(message, text, kept);
  message[kept] = '\0';
  if (kept < length) std::memcpy(message + kept - 3, "...", 3);
  return static_cast<int>(code);
}

int finish(const Status& status) noexcept { return finish_literal(status.code(), status.message().c_str()); }

}  // namespace tierkv::capi
