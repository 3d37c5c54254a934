// runtime.h — the CUDA runtime behind Status: opening a device, memory that frees itself, errors in words.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tierkv/status.h"

namespace tierkv::cuda {

// `what` was tried. Out of memory is resource_exhausted, everything else io_error.
Status status_of(cudaError_t error, const char* what);

struct DeviceFacts {
  int ordinal = 0;
  int multiprocessors = 0;
  bool tensor_paths = false;  // compute capability 9.0 and later: bulk copies, stmatrix
  bool hopper = false;        // 9.0 itself: wgmma
};
// Makes the device the thread's own and says what it is, or why it cannot serve.
Result<DeviceFacts> open_device(int ordinal);

// Device memory that only grows.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // What was in it is gone when it grows. `zeroed`: all bytes are 0 after it grew.
  Status reserve(size_t bytes, bool zeroed = false);
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Pinned host memory that only grows.
class HostBuffer {
 public:
  HostBuffer() = default;
  ~HostBuffer();
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  Status reserve(size_t bytes);
  uint8_t* data() const { return data_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tierkv::cuda
