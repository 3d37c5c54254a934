// guarded.h — what may throw for want of memory outside the arena says so as a Status instead.
//
// Every call of the public API that returns a Status or a Result is behind one of these: guarded() for a part of a function,
// TIERKV_NO_MEMORY for a whole one:
//
//   Status AdaptiveKVCache::truncate(SeqId seq, uint32_t length) try {
//     ...
//   } TIERKV_NO_MEMORY("truncate a sequence")
//
// Inside, what can throw comes before the first change of state, or is undone.
#pragma once

#include <new>
#include <stdexcept>
#include <string>

#include "base/status_macros.h"

namespace tierkv {

// Needs no memory itself: the short text lies inside the Status.
inline Status out_of_memory(const char* what) noexcept {
  try {
    return Status(StatusCode::resource_exhausted, std::string("the system refused memory to ") + what);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::resource_exhausted, "out of memory");
  }
}

template <class Body>
auto guarded(const char* what, Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return out_of_memory(what);
  } catch (const std::length_error&) {  // more than any memory has
    return out_of_memory(what);
  }
}

// For work whose answer says whether it was done: false too when the system has no memory for a list or a codec's scratch.
template <class Work>
bool with_memory(const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace tierkv

#define TIERKV_NO_MEMORY(what)            \
  catch (const std::bad_alloc&) {         \
    return ::tierkv::out_of_memory(what); \
  }                                       \
  catch (const std::length_error&) {      \
    return ::tierkv::out_of_memory(what); \
  }
