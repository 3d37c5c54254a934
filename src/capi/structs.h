// structs.h — how values cross into C and back: structs that may be shorter or longer than the library's, lists, single values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/status_macros.h"
#include "capi/guard.h"

namespace tierkv::capi {

// Hands a caller's id, length or the like out only when the call succeeded.
template <class T, class Out>
Status hand_out(Result<T> result, Out* out) {
  if (!result.ok()) return result.status();
  *out = *result;
  return {};
}

// The "at most capacity, and how many there are" of the listing calls.
template <class T>
Status list_out(const std::vector<T>& all, T* out, size_t capacity, size_t* count) {
  if (capacity && !out) return null_argument("out");
  std::copy_n(all.begin(), std::min(capacity, all.size()), out);
  *count = all.size();
  return {};
}

// The same for structs, in elements of the size the caller knew: what both sides have is copied, the rest of a longer one is left
// alone.
template <class T>
Status list_structs_out(const std::vector<T>& all, void* out, size_t element_size, size_t capacity, size_t* count) {
  if (capacity && !out) return null_argument("out");
  if (capacity && !element_size) return error(StatusCode::invalid_argument, "element_size is 0; give sizeof(*out)");
  const size_t copied = std::min(element_size, sizeof(T));
  for (size_t i = 0; i < std::min(capacity, all.size()); ++i) {
    std::memcpy(static_cast<std::byte*>(out) + i * element_size, &all[i], copied);
  }
  *count = all.size();
  return {};
}

inline Status wrong_size(const char* name, size_t size) {
  return error(StatusCode::invalid_argument, name, "->size is ", size, "; set it to sizeof(*", name, ")");
}

// An output begins with the size the caller knew: what both sides have is copied, the rest of a longer one is left alone.
template <class T>
Status sized_out(T full, T* out, const char* name) {
  if (out->size < sizeof(size_t)) return wrong_size(name, out->size);
  full.size = out->size;
  std::memcpy(out, &full, std::min(out->size, sizeof(T)));
  return {};
}

// An input likewise: what a shorter one does not have stays as it is in `to`, and what a longer one has beyond the library's must
// be zero, the default: a wish that cannot be fulfilled is refused, not dropped. `least` is the first version's size.
template <class T>
Status sized_in(const T* given, size_t least, const char* name, T& to) {
  const size_t size = given->size;
  if (size < least) return wrong_size(name, size);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      return error(StatusCode::unsupported, name, " has ", size, " bytes and something in those past the ", sizeof(T),
                   " that this version of tierkv knows");
    }
  }
  std::memcpy(&to, given, std::min(size, sizeof(T)));
  return {};
}

}  // namespace tierkv::capi
