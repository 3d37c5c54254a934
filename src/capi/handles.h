// handles.h — what is behind the opaque handles of tierkv/c.h.
#pragma once

#include <memory>

#include "tierkv/c.h"
#include "tierkv/cache.h"

struct tierkv_config {
  tierkv::CacheConfig value;
};

struct tierkv_cache {
  std::unique_ptr<tierkv::AdaptiveKVCache> value;
};

namespace tierkv::capi {

// Bytes for the caller, to be given back with tierkv_free(); null when there is no memory. `extra` bytes of zeros follow.
void* copy_out(const void* data, size_t size, size_t extra) noexcept;

}  // namespace tierkv::capi
