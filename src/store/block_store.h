// block_store.h — the sealed blocks of a cache: a small header for each, and its bytes (the payload) apart from it.
//
// A block is up to 256 tokens' keys and values of one KV head as codec bytes. Sequences hold handles to headers and count as
// references; the bytes never change after sealing, so forks share them and a checksum over them means something. What differs
// between sequences (rows in use, evicted rows) is in tiers::BlockRef.
//
// Headers:  48 bytes, in slabs of the arena (bookkeeping). They never move. A slot is used again; an empty slab is given back.
// Payloads: [key bytes, padded to 64][value bytes] in the arena under the tier's tag. The store knows no codec: SizesOf says how
//           long the two parts are. Behind them, in archive blocks of a store that was told so, there is room for a summary: what
//           lets a reader do without the bytes. No checksum counts it and no file has it; who made it knows what it says.
// States:   resident: header.place is the payload. packed: it is the PackedGroup that holds the tokens as a deep archive.
//           spilled: it is the record of where the payload lies in the cold file, with a summary of it.
//           away: a device has the bytes and nobody else (base/far_bytes.h): it is what that holds of them; null: they are lost.
//           Another place is another state: an enumerator, what `place` means for it, a case in drop_place(), and a call like
//           pack() or Unpacking that changes it. Nothing else looks at `place`.
// Copies:   a block may have a copy of its rows in the cold file (store/cold_file.h). It goes with the block, whatever its state.
// Pins:     whoever reads bytes keeps them from changing state. Only the holder of the *only* reference may change a block's state,
//           so one more reference is a pin: Pin takes one. A reader that holds the lock of a sequence has that sequence's own
//           references for as long, and the lock keeps everybody else from changing them: attention reads its whole list of views
//           under that one lock and touches no counter. A counter per block and call would be two locked instructions for every
//           block, on cache lines that forks share; this is none.
// Threads:  safe. References are atomic; slabs have a mutex that is a leaf. Header fields change only while one reference is left.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/arena.h"
#include "base/far_bytes.h"
#include "store/cold_file.h"
#include "store/payload_sizes.h"
#include "tierkv/stats.h"

namespace tierkv::store {

class PackedGroup;
class Unpacking;

enum class BlockState : uint8_t { resident = 0, packed = 1, spilled = 2, away = 3 };

struct BlockBytes {
  std::span<const std::byte> keys, values;
};

// Of the store alone; others see a BlockHandle.
struct BlockHeader {
  std::atomic<uint32_t> refs{1};
  Tier tier = Tier::warm;
  BlockState state = BlockState::resident;
  uint8_t slot = 0;  // in its slab
  const quant::CodecEntry* codec = nullptr;
  const quant::CodecEntry* source = nullptr;
  uint64_t checksum = 0;
  void* place = nullptr;
  ColdCopy* copy = nullptr;  // of the rows before they became this block; null: there is none
};
static_assert(sizeof(BlockHeader) == 48);

// What a sequence holds. A plain value: copying it takes no reference. REQUIRES, for all but bool and ==: it is not null.
class BlockHandle {
 public:
  BlockHandle() = default;
  explicit operator bool() const { return header_ != nullptr; }
  bool operator==(const BlockHandle&) const = default;
  const void* identity() const { return header_; }

  Tier tier() const { return header_->tier; }
  BlockState state() const { return header_->state; }
  bool resident() const { return header_->state == BlockState::resident; }
  bool packed() const { return header_->state == BlockState::packed; }
  bool spilled() const { return header_->state == BlockState::spilled; }
  bool away() const { return header_->state == BlockState::away; }
  // BlockStore::load() gives its bytes.
  bool elsewhere() const { return spilled() || away(); }
  const quant::CodecEntry* codec() const { return header_->codec; }
  const quant::CodecEntry* source() const { return header_->source; }  // what the rows were decoded from; null: 16-bit rows
  uint64_t checksum() const { return header_->checksum; }              // of the resident bytes; when packed, of what they were
  // 1: only the caller's, and nobody can join without the lock of the caller's sequence.
  uint32_t references() const { return header_->refs.load(std::memory_order_acquire); }
  // REQUIRES: packed.
  const PackedGroup* group() const { return static_cast<const PackedGroup*>(header_->place); }

 private:
  friend class BlockStore;
  friend class Unpacking;
  explicit BlockHandle(BlockHeader* header) : header_(header) {}
  BlockHeader* header_ = nullptr;
};

// Memory for the bytes of one block, before it is one. Goes back to the arena unless a block was made of it.
class Payload {
 public:
  Payload() = default;
  Payload(Payload&& other) noexcept { swap(other); }
  Payload& operator=(Payload&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Payload();

  explicit operator bool() const { return at_ != nullptr; }
  std::span<std::byte> keys() { return {at_, sizes_.keys}; }
  std::span<std::byte> values() { return {at_ + sizes_.value_offset(), sizes_.values}; }
  uint64_t compute_checksum() const;

 private:
  friend class BlockStore;
  friend class PackedGroup;
  friend class Unpacking;
  void swap(Payload& other) noexcept;

  Arena* arena_ = nullptr;
  std::byte* at_ = nullptr;
  size_t held() const { return sizes_.total() + room_; }

  PayloadSizes sizes_;
  size_t room_ = 0;  // behind them
  MemoryTag tag_ = MemoryTag::warm;
};

class BlockStore {
 public:
  // `cold`: where copies are, or null. It outlives the store. `summary`: bytes of an archive block's summary; 0: there are none.
  BlockStore(Arena& arena, SizesOf sizes, ColdFile* cold = nullptr, size_t summary = 0)
      : arena_(arena), sizes_(sizes), cold_(cold), summary_(summary) {}
  // REQUIRES: every block was released.
  ~BlockStore() = default;
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  // All bytes zero, padding too, so that nothing undefined is ever read or saved. Null (false): the arena has no room.
  Payload allocate(const quant::CodecEntry& codec, Tier tier, Arena::Use use);
  // A block of it, with one reference, which the caller has. `checksum` is the payload's compute_checksum(). Null: no room for the
  // header; the payload is gone then.
  BlockHandle seal(Payload payload, uint64_t checksum, const quant::CodecEntry& codec, Tier tier, const quant::CodecEntry* source,
                   Arena::Use use);

  void retain(BlockHandle block) { block.header_->refs.fetch_add(1, std::memory_order_relaxed); }
  // The last reference frees the block. Needs no memory.
  void release(BlockHandle block) noexcept;

  // REQUIRES: resident, and the caller's reference stays for as long as it reads: a Pin, or a sequence's lock, keeps it.
  BlockBytes bytes(BlockHandle block) const {
    const PayloadSizes sizes = sizes_(*block.codec());
    const auto* at = static_cast<const std::byte*>(block.header_->place);
    return {{at, sizes.keys}, {at + sizes.value_offset(), sizes.values}};
  }
  // The bytes are those that were sealed. REQUIRES: as bytes().
  bool intact(BlockHandle block) const;

  bool keeps_summaries() const { return summary_ != 0; }
  // Room for its summary, all zeros at first; empty: it has none. Written while the caller has the only reference, and read by all
  // from then on. REQUIRES: as bytes().
  std::span<std::byte> summary(BlockHandle block) const {
    if (summary_ == 0 || block.tier() != Tier::archive || block.away()) return {};
    return {static_cast<std::byte*>(block.header_->place) + Arena::rounded(sizes_(*block.codec()).total()), summary_};
  }

  // --- copies in the cold file
  // The block's copy from here on, by the caller's reference to it. REQUIRES: resident, one reference, and it has none.
  void attach(BlockHandle block, ColdCopy* copy) noexcept { block.header_->copy = copy; }
  // Its copy, if that can be read; else null.
  ColdCopy* copy(BlockHandle block) const { return ColdFile::usable(block.header_->copy) ? block.header_->copy : nullptr; }
  // Readable or lost; null: it never had one.
  const ColdCopy* copy_record(BlockHandle block) const { return block.header_->copy; }
  // A new block, resident, that is the copy bit for bit, with one reference, which the caller has. resource_exhausted: no room.
  // Otherwise as ColdFile::read(). REQUIRES: copy(block) is not null, and the caller has a reference to the block.
  [[nodiscard]] Result<BlockHandle> restore(BlockHandle block);
  ColdFile* cold() const { return cold_; }

  // --- blocks in the cold file
  // Its payload goes to the file and stays there; `summary` is what memory keeps of it. As ColdFile::write_now(); the block is as
  // it was when that fails. REQUIRES: resident, one reference, its sequence's lock.
  [[nodiscard]] Status spill(BlockHandle block, std::span<const std::byte> summary);
  // Where it lies. REQUIRES: spilled; the caller's reference stays.
  ColdCopy* spilled(BlockHandle block) const { return static_cast<ColdCopy*>(block.header_->place); }
  // Its bytes, exactly those that were sealed, into sizes.total() bytes. As ColdFile::read(), or FarBytes::read(). data_loss: they
  // do not match their checksum, or are lost. REQUIRES: elsewhere(); the caller's reference stays.
  [[nodiscard]] Status load(BlockHandle block, std::vector<std::byte>& out) const;

  // --- blocks on a device
  // Who has the bytes of blocks that are away. REQUIRES: none is, but lost ones, and no call is under way.
  void set_far(std::shared_ptr<const FarBytes> far) { far_ = std::move(far); }
  const FarBytes* far() const { return far_.get(); }
  // Its payload goes, if the device has the bytes. False: it has not, or memory must keep a summary behind them. REQUIRES:
  // resident, one reference, its sequence's lock.
  bool send_away(BlockHandle block) noexcept;
  // Resident again. resource_exhausted: no room. Otherwise as load(). REQUIRES: away, and one reference and its sequence's lock; or
  // no call is under way.
  [[nodiscard]] Status bring_back(BlockHandle block);
  // Nobody will ever read it again. REQUIRES: as bring_back().
  void give_up(BlockHandle block) noexcept;
  bool lost(BlockHandle block) const { return block.away() && block.header_->place == nullptr; }

  // What a payload takes from the arena.
  size_t held_bytes(const quant::CodecEntry& codec, Tier tier) const {
    const PayloadSizes sizes = sizes_(codec);
    return Arena::rounded(sizes.total() + room(sizes, tier));
  }
  // What slabs for `count` more headers take from the arena at this moment.
  size_t header_bytes_for(size_t count) const;

  // Packing: what it would give back, and what it takes beside the packed bytes themselves (headers for blocks that others hold
  // as well). REQUIRES: the caller has a reference to each, and its sequence's lock.
  struct Price {
    uint64_t frees = 0, headers = 0;
  };
  Price price(std::span<BlockHandle* const> blocks) const;
  // Makes the blocks packed members of `group`, which gets `bytes`. Where the arena has no room for them they take over the memory
  // of the very blocks they replace: packing is what an operator does when memory is short, and must not need more of it first. A
  // block that others refer to as well stays theirs, and the caller's handle becomes a packed one of its own. False: no room,
  // nothing was changed. REQUIRES: as price(), all resident or away, and not empty.
  [[nodiscard]] bool pack(std::span<BlockHandle* const> blocks, std::unique_ptr<PackedGroup> group,
                          std::span<const std::byte> bytes);

  Arena& arena() { return arena_; }
  // Rows that calls under way hold outside the arena (CountedScratch).
  uint64_t scratch_bytes() const { return scratch_.load(std::memory_order_relaxed); }

 private:
  friend class Unpacking;
  friend class CountedScratch;
  static constexpr uint32_t kSlots = 20;
  struct Slab {
    Slab* previous = nullptr;  // among those with a free slot
    Slab* next = nullptr;
    uint32_t used = 0;  // bit i: slot i
  };
  static constexpr size_t kSlabHead = 64;
  static_assert(sizeof(Slab) <= kSlabHead);

 public:
  static constexpr size_t kSlabBytes = kSlabHead + kSlots * sizeof(BlockHeader);

 private:
  static_assert(kSlabBytes == 1024);
  // Behind a payload: its padding to 64 bytes and the summary.
  size_t room(const PayloadSizes& sizes, Tier tier) const {
    if (summary_ == 0 || tier != Tier::archive) return 0;
    return Arena::rounded(sizes.total()) - sizes.total() + summary_;
  }
  BlockHeader* take_header(Arena::Use use);
  void give_header(BlockHeader* header) noexcept;
  void link(Slab* slab);
  void unlink(Slab* slab);
  Payload take_payload(BlockHeader* header) noexcept;
  Status read_away(const BlockHeader* header, std::span<std::byte> out) const;
  void drop_place(BlockHeader* header) noexcept;
  void share_copy(const BlockHeader* from, BlockHeader* to) noexcept;
  void become_packed(BlockHeader* header, PackedGroup* group) noexcept;
  void become_resident(BlockHeader* header, Payload payload, const quant::CodecEntry& codec, uint64_t checksum) noexcept;

  Arena& arena_;
  const SizesOf sizes_;
  ColdFile* const cold_;
  std::shared_ptr<const FarBytes> far_;  // or null
  const size_t summary_;
  mutable std::mutex mutex_;
  Slab* open_ = nullptr;  // slabs with a free slot
  size_t free_slots_ = 0;
  std::atomic<uint64_t> scratch_ = 0;
};

// Counts memory outside the arena for as long as it lives, so that it is reported.
class CountedScratch {
 public:
  CountedScratch(BlockStore& store, uint64_t bytes) : store_(store), bytes_(bytes) { store_.scratch_ += bytes_; }
  ~CountedScratch() { store_.scratch_ -= bytes_; }
  CountedScratch(const CountedScratch&) = delete;
  CountedScratch& operator=(const CountedScratch&) = delete;

 private:
  BlockStore& store_;
  const uint64_t bytes_;
};

// Holds one more reference to a resident block: its bytes stay where they are and as they are for as long as this lives.
class Pin {
 public:
  // REQUIRES: resident; the caller has a reference, or the lock of a sequence that has one.
  Pin(BlockStore& store, BlockHandle block) : store_(store), block_(block), bytes_(store.bytes(block)) { store_.retain(block_); }
  ~Pin() { store_.release(block_); }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

  std::span<const std::byte> keys() const { return bytes_.keys; }
  std::span<const std::byte> values() const { return bytes_.values; }

 private:
  BlockStore& store_;
  const BlockHandle block_;
  const BlockBytes bytes_;
};

}  // namespace tierkv::store
