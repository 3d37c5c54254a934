// guarded.h — runs what may throw for want of memory outside the arena, and says so as a Status.
#pragma once

#include <new>

#include "base/status_macros.h"

namespace tierkv {

template <class Body>
auto guarded(const char* what, Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return error(StatusCode::resource_exhausted, "the system refused memory to ", what);
  }
}

}  // namespace tierkv
