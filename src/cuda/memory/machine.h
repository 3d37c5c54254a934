// machine.h — what the backend asks of a device: memory, copies, one launch. All that decides is host code on top of it, and the
// tests run that on a machine whose memory is the processor's and whose launch is the scalar twin (twin_testing.h).
//
// Order:   sends, clears, moves and launches happen one after the other, as they were asked for, on whatever stream.
// Streams: what is asked for goes to the stream that was followed last, its own at the start.
// Aside:   between go_aside() and come_back() it goes to one more, which is in order with itself alone.
// Errors:  resource_exhausted: no memory. io_error: the device failed. failed_precondition: a caller's stream is being captured.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/status_macros.h"
#include "cuda/launch/encode.h"
#include "cuda/launch/mass.h"
#include "cuda/launch/prompt.h"
#include "cuda/launch/row_moves.h"
#include "cuda/plan/plan.h"
#include "tierkv/status.h"

namespace tierkv::cuda {

struct MachineFacts {
  uint32_t multiprocessors = 1;
  bool tensor_paths = false;  // it has what the fast paths need
};

// The machine's own stream, or a caller's: a cudaStream_t, null for the legacy default one.
struct StreamName {
  bool callers = false;
  void* handle = nullptr;
  bool operator==(const StreamName&) const = default;
};
inline StreamName stream_of(const RowsView& rows) {
  return rows.place == MemoryPlace::device ? StreamName{true, rows.ready} : StreamName{};
}

// A place in the order of what was asked for. Threads: any, once it was put.
class Mark {
 public:
  virtual ~Mark() = default;
  // Everything before it is done; true, too, where the device failed.
  virtual bool reached() const = 0;
  virtual Status wait() const = 0;
};

class Graph;

class Machine {
 public:
  virtual ~Machine() = default;
  virtual MachineFacts facts() const = 0;

  // To be called first by every thread that comes.
  virtual Status enter() = 0;

  // From here on everything is asked for on this stream, behind what was asked for before.
  virtual Status follow(const StreamName& stream) = 0;
  // Back to its own, behind what was asked for. The caller may do with his stream what he likes.
  virtual Status leave() = 0;

  // Things that need nothing of what is still on its way, and that nothing else needs: they wait for nobody, and wait() waits for
  // them alone. REQUIRES: what they read was seen to be done (a mark that was reached, wait()), and they are waited for before
  // come_back(). No stream is followed, and no mark put, in between.
  virtual void go_aside() noexcept = 0;
  virtual void come_back() noexcept = 0;

  // Memory of the device, all zeros, aligned to 256 bytes.
  Result<uint8_t*> allocate(size_t bytes) {
    TIERKV_ASSIGN_OR_RETURN(uint8_t* const memory, take_memory(bytes));
    sizes_.emplace(memory, bytes);
    bytes_ += bytes;
    most_bytes_ = std::max(most_bytes_, bytes_);
    return memory;
  }
  // Everything that was asked for is done with it afterwards. Null is fine.
  void release(uint8_t* memory) noexcept {
    if (const auto found = sizes_.find(memory); found != sizes_.end()) {
      bytes_ -= found->second;
      sizes_.erase(found);
    }
    give_memory(memory);
  }
  // Of the device, that was allocated and not released: now, and at most.
  uint64_t bytes() const { return bytes_; }
  uint64_t most_bytes() const { return most_bytes_; }
  // The processor's, from which sending is fastest.
  virtual Result<uint8_t*> allocate_staging(size_t bytes) = 0;
  virtual void release_staging(uint8_t* memory) noexcept = 0;

  // Bytes in staging memory must stay until wait(), or until a mark behind it is reached; others are free again when this returns.
  virtual Status send(uint8_t* to, const void* from, size_t bytes) = 0;
  // `count` pieces of `bytes` bytes that lie so far apart.
  virtual Status send_pieces(uint8_t* to, size_t to_stride, const void* from, size_t from_stride, size_t bytes, size_t count) = 0;
  virtual Status clear(uint8_t* at, size_t bytes) = 0;
  // `plan`: what the launch was made of.
  virtual Status attend(const Launch& launch, const Plan& plan) = 0;
  // What rows received (mass.h), once attention that was asked for has left its sums.
  virtual Status weigh(const MassLaunch& launch) = 0;
  // Blocks out of rows (encode.h).
  virtual Status encode(const EncodeLaunch& launch) = 0;
  // One step of a round of many queries (prompt.h).
  virtual Status prompt(const PromptLaunch& launch, PromptStep step) = 0;
  // Into staging memory.
  virtual Status fetch(void* to, const uint8_t* from, size_t bytes) = 0;
  // From the device's or staging memory to either.
  virtual Status move_rows(std::span<const RowMove> moves, uint32_t head_dim) = 0;
  virtual Status wait() = 0;

  virtual Result<std::unique_ptr<Mark>> make_mark() = 0;
  // Behind all that was asked for so far. A mark may be put again once it was reached.
  virtual Status put(Mark& mark) = 0;

  // Places in a graph that somebody captures (graph.h).
  virtual Result<std::unique_ptr<Graph>> make_graph() = 0;
  // The caller launches that graph now, behind what was asked for on the stream that is followed, which is left by this: whatever
  // is asked for afterwards comes behind his launch.
  virtual Status leave_to(Graph& graph) = 0;

 protected:
  virtual Result<uint8_t*> take_memory(size_t bytes) = 0;
  virtual void give_memory(uint8_t* memory) noexcept = 0;

 private:
  std::unordered_map<const uint8_t*, size_t> sizes_;
  uint64_t bytes_ = 0, most_bytes_ = 0;
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
  // So many bytes and no more, and what was there goes first: of what is sent anew anyway. Refused, there is none.
  Status renew(size_t bytes) {
    release(std::exchange(data_, nullptr));
    size_ = 0;
    TIERKV_ASSIGN_OR_RETURN(data_, staging ? machine_.allocate_staging(bytes) : machine_.allocate(bytes));
    size_ = bytes;
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
