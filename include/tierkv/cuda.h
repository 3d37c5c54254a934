// cuda.h — a cache whose attention runs on a CUDA device.
//
//   auto device = tierkv::cuda::attach(*cache);         // the first device
//   if (!device.ok()) std::puts(device.status().message().c_str());
//
// From then on attention() of up to kMostQueries queries a sequence is one launch over all sequences and all tiers. Sealed blocks
// are copied to the device once and stay there, and so do hot rows; queries and results travel with every call. More queries a
// sequence, a prompt, are attended to in rounds: some heads of the past are unpacked into at most 144 MiB of 16-bit floats, once
// for all queries, and never the whole of it. What the device does not do, the processor does, with the same results: codecs
// without a device reader (kvquant), prompts whose rows 16-bit floats cannot hold, and calls of few queries that ask what more than
// about a thousand rows of a head receive. What rows receive otherwise it adds up beside the device's attention. Appending, coding,
// eviction, snapshots and all errors are the cache's own.
//
// Build:   -DTIERKV_CUDA=ON. Without it every call here is `unsupported`.
// Errors:  unsupported: no CUDA in this build, or a device older than compute capability 8.0. failed_precondition: no device, or a
//          driver too old for CUDA 13. resource_exhausted: no device memory left for what a call needs; the cache is as it was, and
//          detaching goes on without the device. io_error: the device or its stream failed; attach again, or detach.
// Threads: calls of one cache take turns on its device.
#pragma once

#include <cstdint>
#include <memory>

#include "tierkv/cache.h"

namespace tierkv::cuda {

inline constexpr uint32_t kMostQueries = 16;

struct Options {
  int device = 0;
  uint64_t byte_limit = 0;  // for copies of blocks; 0: what the device has. The longest unused go first when it is reached.
};

struct Usage {
  uint64_t block_bytes = 0;    // copies of sealed blocks
  uint64_t scratch_bytes = 0;  // descriptors, hot rows, queries, partial results, tables
  uint64_t blocks = 0;
  uint64_t uploads = 0;  // blocks copied so far
  uint64_t launches = 0;
  uint64_t on_processor = 0;  // pieces of work that the processor took
};

class Device {
 public:
  virtual ~Device() = default;
  virtual Usage usage() const = 0;
};

// Whether attach() could work here, and if not, why.
Status available(int device = 0);

// The result reports on the device; the cache keeps what it needs of it. REQUIRES: no other call on the cache is under way.
Result<std::shared_ptr<const Device>> attach(AdaptiveKVCache& cache, const Options& options = {});
// Back to the processor. REQUIRES: as attach().
void detach(AdaptiveKVCache& cache);

}  // namespace tierkv::cuda
