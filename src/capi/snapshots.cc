// snapshots.cc — tierkv/c.h: one sequence to a file or to bytes, and back.
#include <new>
#include <vector>

#include "capi/guard.h"
#include "capi/handles.h"
#include "capi/structs.h"

using tierkv::Status;
using tierkv::capi::guarded;

using namespace tierkv::capi;

extern "C" {

tierkv_status tierkv_save(const tierkv_cache* cache, tierkv_seq seq, const char* path) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(path);
    return cache->value->save(seq, path);
  });
}

tierkv_status tierkv_load(tierkv_cache* cache, const char* path, tierkv_seq* out) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(path);
    TIERKV_NOT_NULL(out);
    return hand_out(cache->value->load(path), out);
  });
}

tierkv_status tierkv_freeze(const tierkv_cache* cache, tierkv_seq seq, void** out, size_t* size) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(out);
    TIERKV_NOT_NULL(size);
    TIERKV_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, cache->value->freeze(seq));
    void* copy = copy_out(bytes.data(), bytes.size(), 0);
    if (!copy) throw std::bad_alloc();
    *out = copy;
    *size = bytes.size();
    return {};
  });
}

tierkv_status tierkv_unfreeze(tierkv_cache* cache, const void* bytes, size_t size, tierkv_seq* out) {
  return guarded([&]() -> Status {
    TIERKV_NOT_NULL(cache);
    TIERKV_NOT_NULL(bytes);
    TIERKV_NOT_NULL(out);
    return hand_out(cache->value->unfreeze({static_cast<const std::byte*>(bytes), size}), out);
  });
}

}  // extern "C"
