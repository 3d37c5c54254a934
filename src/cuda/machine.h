// machine.h — what the backend asks of a device: memory, copies, one launch. All that decides is host code on top of it, and the
// tests run that on a machine whose memory is the processor's and whose launch is the scalar twin (twin_testing.h).
//
// Order:   sends, clears and launches happen one after the other, as they were asked for.
// Errors:  resource_exhausted: no memory. io_error: the device failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/status_macros.h"
#include "cuda/plan.h"
#include "cuda/prompt.h"
#include "tierkv/status.h"

namespace tierkv::cuda {

struct MachineFacts {
  uint32_t multiprocessors = 1;
  bool tensor_paths = false;  // it has what the fast paths need
};

class Machine {
 public:
  virtual ~Machine() = default;
  virtual MachineFacts facts() const = 0;

  // To be called first by every thread that comes.
  virtual Status enter() = 0;

  // Memory of the device, all zeros, aligned to 256 bytes.
  virtual Result<uint8_t*> allocate(size_t bytes) = 0;
  // Everything that was asked for is done with it afterwards. Null is fine.
  virtual void release(uint8_t* memory) noexcept = 0;
  // The processor's, from which sending is fastest.
  virtual Result<uint8_t*> allocate_staging(size_t bytes) = 0;
  virtual void release_staging(uint8_t* memory) noexcept = 0;

  // Bytes in staging memory must stay until wait(); others are free again when this returns.
  virtual Status send(uint8_t* to, const void* from, size_t bytes) = 0;
  // `count` pieces of `bytes` bytes that lie so far apart.
  virtual Status send_pieces(uint8_t* to, size_t to_stride, const void* from, size_t from_stride, size_t bytes, size_t count) = 0;
  virtual Status clear(uint8_t* at, size_t bytes) = 0;
  // `plan`: what the launch was made of.
  virtual Status attend(const Launch& launch, const Plan& plan) = 0;
  // One step of a round of many queries (prompt.h).
  virtual Status prompt(const PromptLaunch& launch, PromptStep step) = 0;
  // Into staging memory.
  virtual Status fetch(void* to, const uint8_t* from, size_t bytes) = 0;
  virtual Status wait() = 0;
};

// Memory that only grows; what was in it is gone when it does.
template <bool staging>
class GrowingMemory {
 public:
  explicit GrowingMemory(Machine& machine) : machine_(machine) {}
  ~GrowingMemory() { release(data_); }
  GrowingMemory(const GrowingMemory&) = delete;
  GrowingMemory& operator=(const GrowingMemory&) = delete;

  Status reserve(size_t bytes) {
    if (bytes <= size_) return {};
    const size_t wanted = bytes > size_ + size_ / 2 ? bytes : size_ + size_ / 2;
    TIERKV_ASSIGN_OR_RETURN(uint8_t* const fresh, staging ? machine_.allocate_staging(wanted) : machine_.allocate(wanted));
    release(std::exchange(data_, fresh));
    size_ = wanted;
    return {};
  }
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void release(uint8_t* memory) {
    if (staging) machine_.release_staging(memory);
    else machine_.release(memory);
  }

  Machine& machine_;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};
using DeviceMemory = GrowingMemory<false>;
using Staging = GrowingMemory<true>;

inline size_t line_rounded(size_t bytes) { return (bytes + 127) / 128 * 128; }

}  // namespace tierkv::cuda
