// cold_file.h — copies of blocks in a file, in more bits than memory has for them: the block store's second medium.
//
// A copy is the payload of a block in the cold codec, made once and never changed, like a block. It has references of its own,
// because several headers may stand for the same rows (forks, packed blocks); the last one frees its place in the file.
//
// File:     a header of 4,096 bytes, then slots of 64-byte steps, one copy each. A freed slot is used again for a copy of the same
//           size; when no copy is left the file shrinks to its header. Its bytes mean something to the cache that wrote them and to
//           nobody else: offsets and checksums are in memory. So a process that dies in the middle of a write leaves nothing that
//           could be taken for a copy. A named file is locked, emptied at the start and removed at the end; in a folder the file
//           has no name at all.
// Writing:  behind the caller, by one thread of low priority. add() puts the bytes into a queue and never waits for the disk: when
//           the queue is full the copy is not made, and stats() counts it. A system that refuses the thread has copies written by
//           add() itself.
// Reading:  from the queue where the copy is not written yet, else from the file. Bytes that do not match the checksum are never
//           handed out: the copy is lost then, for everybody, and counted.
// Memory:   64 bytes of the arena for each copy (bookkeeping). The queue is outside of it: at most kQueueBytes, in stats().
// Threads:  safe. The mutex is a leaf, and never held while the file is read or written, but where the system refused a thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/arena.h"
#include "store/payload_sizes.h"
#include "tierkv/stats.h"
#include "tierkv/status.h"

namespace tierkv::store {

// Where the bytes go: a file, or what a test puts in its place.
class ColdMedium {
 public:
  virtual ~ColdMedium() = default;
  virtual Status write(uint64_t offset, std::span<const std::byte> bytes) = 0;
  // data_loss: the file ends before that.
  virtual Status read(uint64_t offset, std::span<std::byte> bytes) = 0;
  virtual void shrink(uint64_t bytes) noexcept = 0;
};
// `path` is a folder or a file. failed_precondition: another cache has it. invalid_argument: it holds something else.
Result<std::unique_ptr<ColdMedium>> open_cold_medium(const std::string& path);

// Of ColdFile alone; others hold a pointer to it.
struct ColdCopy {
  enum class State : uint8_t { queued, written, lost };
  std::atomic<uint32_t> refs{1};
  std::atomic<State> state{State::queued};
  uint16_t summary_bytes = 0;
  const quant::CodecEntry* codec = nullptr;
  uint64_t checksum = 0;  // as the payload's
  uint64_t offset = 0;
  PayloadSizes sizes;
  void* pending = nullptr;       // its item in the queue
  std::byte* summary = nullptr;  // what stays in memory of a spilled block, in the arena
};
static_assert(sizeof(ColdCopy) <= Arena::kAlign);

class ColdFile {
 public:
  static constexpr size_t kQueueBytes = size_t{32} << 20;
  static constexpr uint64_t kHeaderBytes = 4096;

  // `limit`: bytes of the file at most; 0: as many as the disk has.
  ColdFile(std::unique_ptr<ColdMedium> medium, Arena& arena, uint64_t limit, size_t queue_bytes = kQueueBytes);
  // What waits is not written any more. REQUIRES: every copy was released.
  ~ColdFile();
  ColdFile(const ColdFile&) = delete;
  ColdFile& operator=(const ColdFile&) = delete;

  // A copy of `bytes`, a payload of these sizes whose checksum this is, with one reference, which the caller has. Null: the queue,
  // the file or the arena has no room; stats() counts it.
  ColdCopy* add(const quant::CodecEntry& codec, const PayloadSizes& sizes, uint64_t checksum,
                std::span<const std::byte> bytes) noexcept;
  // The same, but the bytes are in the file when this returns: for blocks that are nowhere else then. `summary`: at most 64 KiB
  // about them that stay in memory. resource_exhausted: the arena or the file has no room.
  [[nodiscard]] Result<ColdCopy*> write_now(const quant::CodecEntry& codec, const PayloadSizes& sizes, uint64_t checksum,
                                            std::span<const std::byte> bytes, std::span<const std::byte> summary);
  void retain(ColdCopy* copy) noexcept { copy->refs.fetch_add(1, std::memory_order_relaxed); }
  // Needs no memory.
  void release(ColdCopy* copy) noexcept;

  // Whether read() may succeed.
  static bool usable(const ColdCopy* copy) { return copy && copy->state.load(std::memory_order_relaxed) != ColdCopy::State::lost; }
  // Exactly sizes.total() bytes. data_loss: they are lost, here and from now on. io_error: the system did not read them this time.
  // REQUIRES: the caller has a reference.
  [[nodiscard]] Status read(ColdCopy& copy, std::span<std::byte> out);

  // Several at once, in one read of the file, each from the next multiple of 64 bytes of `out` on. `lost`: which one it was, when
  // the status is not OK. REQUIRES: each lies in the file right behind the one before, and none is in the queue.
  [[nodiscard]] Status read_run(std::span<ColdCopy* const> copies, std::span<std::byte> out, size_t& lost);

  // Waits until everything that was added is in the file or has failed.
  void drain();
  ColdStats stats() const;
  uint64_t file_bytes() const;  // of them, without allocating

 private:
  struct Pending {
    ColdCopy* copy = nullptr;
    std::vector<std::byte> bytes;
    std::list<Pending>::iterator self = {};
  };
  using Queue = std::list<Pending>;
  // Slots of one size.
  struct SizeClass {
    size_t bytes = 0;
    size_t made = 0;
    std::vector<uint64_t> free;  // offsets; its capacity is at least `made`, so that freeing needs no memory
  };
  using Lock = std::unique_lock<std::mutex>;

  void write_loop();
  void write_first(Lock& lock);
  // All under the lock.
  bool take_slot(size_t bytes, uint64_t& offset);
  void give_slot(const ColdCopy& copy) noexcept;
  void lose(ColdCopy& copy) noexcept;
  void note(const Status& status) noexcept;
  bool busy() const { return !queue_.empty() || shrink_; }
  void finish(Lock& lock);
  void free_record(ColdCopy* copy) noexcept;
  Status check(ColdCopy& copy, std::span<const std::byte> bytes, Status status);  // without the lock

  const std::unique_ptr<ColdMedium> medium_;
  Arena& arena_;
  const uint64_t limit_;
  const size_t queue_limit_;

  std::mutex file_;  // between write_now() and shrinking alone; taken before the other
  mutable std::mutex mutex_;
  std::condition_variable ready_, idle_;
  Queue queue_;
  std::vector<SizeClass> classes_;
  uint64_t end_ = kHeaderBytes;
  ColdStats stats_;
  ColdCopy* writing_ = nullptr;  // the front of the queue, without the lock
  bool abandoned_ = false;       // nobody wants it any more
  bool shrink_ = false;          // no slot is in use
  bool stop_ = false;
  bool threaded_ = true;  // false: the system refused a thread, and add() writes under the lock
  std::thread writer_;
};

}  // namespace tierkv::store
