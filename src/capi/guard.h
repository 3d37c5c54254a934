// guard.h — the wall between C++ and C: runs a call, turns whatever comes out of it into a status number and a sentence for this
// thread.
//
// Every function of tierkv/c.h that can fail goes through guarded(), so that no exception, not even one from growing a message,
// gets past.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "tierkv/status.h"

namespace tierkv::capi {

// This thread's sentence; "" after a call that succeeded. Setting it never throws.
const char* last_error() noexcept;
int finish(const Status& status) noexcept;
int finish_literal(StatusCode code, const char* text) noexcept;

template <class Body>
int guarded(Body&& body) noexcept {
  try {
    return finish(std::forward<Body>(body)());
  } catch (const std::bad_alloc&) {
    return finish_literal(StatusCode::resource_exhausted, "the system refused memory");
  } catch (const std::exception& e) {
    return finish_literal(StatusCode::internal, e.what());
  } catch (...) {
    return finish_literal(StatusCode::internal, "an unknown exception");
  }
}

inline Status null_argument(const char* name) { return error(StatusCode::invalid_argument, "'", name, "' must not be null"); }

}  // namespace tierkv::capi

// Refuses a null argument by its name.
#define TIERKV_NOT_NULL(argument) \
  if (!(argument)) return ::tierkv::capi::null_argument(#argument)
