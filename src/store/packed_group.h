// packed_group.h — the bytes of one deep archive: the tokens of many blocks, of all layers at once, and the way back to blocks.
//
// A group belongs to its blocks: each packed header counts as one member, and the last one to leave frees it.
// Memory:   one piece of the arena where it has one, else the pieces of the blocks the bytes replaced; under MemoryTag::parked.
// Threads:  members may leave at any time; everything else is under the lock of a sequence that has a member.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "store/block_store.h"
#include "tierkv/cache.h"

namespace tierkv::store {

class PackedGroup {
 public:
  // What the archive is of; the store only keeps it.
  uint32_t first = 0, end = 0;  // positions
  CalibrationPtr calibration;   // whose tables decode it, whatever the cache is given later
  DeepReport report;

  PackedGroup() = default;
  ~PackedGroup() { release(); }
  PackedGroup(const PackedGroup&) = delete;
  PackedGroup& operator=(const PackedGroup&) = delete;

  std::vector<std::byte> read() const;
  size_t size() const { return size_; }
  size_t held() const;  // with what rounding adds
  // The bytes are those that were put there.
  bool intact() const;

 private:
  friend class BlockStore;
  friend class Unpacking;
  struct Piece {
    std::byte* at;
    size_t bytes;
  };
  void join() noexcept { members_.fetch_add(1, std::memory_order_relaxed); }
  void leave() noexcept;
  // In one piece, or in the memory of as many donors as it takes, which become null. False: neither has room, nothing was changed.
  // Throws only before anything changed, and not at all after reserve().
  [[nodiscard]] bool put(Arena& arena, std::span<const std::byte> bytes, std::span<Payload> donors);
  void reserve(size_t pieces) { pieces_.reserve(pieces); }
  void release() noexcept;

  std::atomic<uint32_t> members_ = 0;
  Arena* arena_ = nullptr;
  std::vector<Piece> pieces_;
  size_t size_ = 0;
  uint64_t checksum_ = 0;
};

// Packed blocks of one group on their way back: a payload is made for each, in any order and from several threads, and commit()
// makes them resident all at once. Until then, and for ever when it is not called, the blocks and their group are as they were.
// Memory:   where the arena has no room the group's own memory serves, once the payloads made so far could take its bytes back
//           whatever other threads do with the memory meanwhile. A copy of the packed bytes is held outside the arena.
class Unpacking {
 public:
  // The blocks are handles of the caller's sequence, whose lock it holds until this is gone. Throws bad_alloc.
  Unpacking(BlockStore& store, std::vector<BlockHandle*> blocks);
  ~Unpacking();
  Unpacking(const Unpacking&) = delete;
  Unpacking& operator=(const Unpacking&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  const PackedGroup& group() const { return group_; }
  // Memory for the block at `index`; again for another codec, when the first refused. False: no room.
  [[nodiscard]] bool allocate(size_t index, const quant::CodecEntry& codec);
  Payload& payload(size_t index) { return slots_[index].payload; }
  // Its bytes are written. False: no room for a header, which a block needs that a fork has as well.
  [[nodiscard]] bool sealed(size_t index);
  // REQUIRES: every block is sealed.
  void commit() noexcept;

 private:
  struct Slot {
    BlockHandle* block = nullptr;
    const quant::CodecEntry* codec = nullptr;
    Payload payload;
    BlockHeader* fresh = nullptr;
    uint64_t checksum = 0;
  };
  bool surrender();

  BlockStore& store_;
  PackedGroup& group_;
  std::vector<std::byte> bytes_;
  std::vector<Slot> slots_;
  std::vector<Payload> donors_;  // reserved: giving memory back must not need any
  std::mutex mutex_;
  uint64_t made_ = 0;  // bytes of payloads
  bool surrendered_ = false;
};

}  // namespace tierkv::store
