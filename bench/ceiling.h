// ceiling.h — how fast this machine can read memory at all: the roof over every attention kernel.
//
// A buffer far larger than the caches, on huge pages where there are any, read once from end to end by every thread in several
// streams with the widest loads of the processor. Nothing is computed but the exclusive or that keeps the loads from being left
// out, and is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/thread_pool.h"
#include "tierkv/status.h"

namespace tierkv::bench {

class ReadCeiling {
 public:
  ReadCeiling(size_t bytes, uint32_t threads);
  size_t bytes() const { return bytes_; }
  Status read();

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  size_t bytes_;
  ThreadPool pool_;
  std::unique_ptr<uint64_t, Free> buffer_;
  uint64_t expected_ = 0;
};

// Bytes that are certainly not in the caches any more when their turn comes again: three times the last-level cache.
size_t cold_bytes();

}  // namespace tierkv::bench
