// places.h — which sealed blocks have a copy in a device's memory, and where: the books of mirror.h. Host code; no device needed.
//
// A sealed block never changes, and forks share it, so its checksum and its length name its bytes. Nobody tells that a block was
// released: when room is short the copies go that were used longest ago. Those that the call under way asked for stay, and so do
// those that somebody holds. Of blocks that are nowhere else (device_far.cc) the last holder says when they go, and who has other
// blocks in their stead says so (replaced()).
// Layout:  [key bytes, padded to 32][value bytes], 32-byte aligned, which is what memory reads at a time; in slabs of 4 MiB, or a
//          256th of all there is where that is more, up to 32. A place is used again by blocks of its size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <unordered_map>
#include <vector>

#include "tierkv/status.h"

namespace tierkv::cuda {

class Places {
 public:
  // Memory for one more slab, for good; resource_exhausted: there is none.
  using MoreMemory = std::function<Result<uint8_t*>(size_t bytes)>;
  Places(uint64_t byte_limit, MoreMemory more) : limit_(byte_limit), more_(std::move(more)) {}

  struct Entry {
    uint64_t name;
    size_t size;
    uint8_t* keys;
    uint8_t* values;
    uint64_t used;       // by which call
    uint32_t holds = 0;  // by those who keep its address from call to call
    uint32_t kept = 0;   // of these, by blocks that are nowhere else
    uint64_t sent = 0;   // mirror.h's: the change by which its bytes came
    std::list<Entry>::iterator self = {};
    // Where a side's own bytes are: the first `base` at its begin, the others `rest` behind it.
    struct Own {
      size_t base = 0, rest = 0;
    };
    Own own_keys = {}, own_values = {};
    uint32_t gone = 0;  // device_far.cc's: of `kept`, that nobody needs any more
    Entry* next_gone = nullptr;
  };

  // A new call begins: what it asks for stays until the next one.
  void begin_call() { ++call_; }
  // A block that is there, by the bytes of its sides; null: it is not.
  Entry* find(uint64_t sealed, size_t key_bytes, size_t value_bytes);
  // The same, but that it is not asked for: it may go as early as before.
  Entry* look(uint64_t sealed, size_t key_bytes, size_t value_bytes) const;
  // A place for one that is not, which takes so many bytes there; the caller copies the bytes, or forgets it. resource_exhausted:
  // everything there is belongs to this call or is held.
  Result<Entry*> add(uint64_t sealed, size_t key_bytes, size_t value_bytes, size_t keys_there, size_t values_there);
  Result<Entry*> add(uint64_t sealed, size_t key_bytes, size_t value_bytes) {
    return add(sealed, key_bytes, value_bytes, key_bytes, value_bytes);
  }
  void forget(Entry* entry);
  // It stays until it is let go as often. What nobody holds any more goes first, unless the call under way asked for it.
  void hold(Entry* entry);
  void let_go(Entry* entry);
  // The same by somebody who has other blocks now: if nobody else holds it its place is free at once, and not when room is short.
  void replaced(Entry* entry);

  // The same, of blocks whose bytes are nowhere else.
  void keep(Entry* entry);
  void give_up(Entry* entry);

  uint64_t bytes() const { return slab_bytes_; }
  uint64_t blocks() const { return known_.size(); }
  uint64_t kept_bytes() const { return kept_bytes_; }  // what blocks take that are nowhere else
  uint64_t kept_blocks() const { return kept_blocks_; }
  uint64_t refusals() const { return refusals_; }  // add() had no room

 private:
  static constexpr size_t kLeastSlab = size_t{4} << 20, kMostSlab = size_t{32} << 20, kSlabStep = size_t{2} << 20;
  static constexpr size_t kSlabShare = 256, kAlign = 32;
  using Entries = std::list<Entry>;

  static uint64_t name_of(uint64_t sealed, size_t key_bytes, size_t value_bytes);
  static size_t rounded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
  Result<uint8_t*> take(size_t size);
  size_t next_slab(size_t size) const;
  bool drop_oldest();

  const uint64_t limit_;
  const MoreMemory more_;
  uint64_t call_ = 0, kept_bytes_ = 0, kept_blocks_ = 0, refusals_ = 0;
  uint8_t* slab_ = nullptr;  // the last one
  size_t slab_size_ = 0, slab_used_ = 0;
  uint64_t slab_bytes_ = 0;                       // of all
  std::map<size_t, std::vector<uint8_t*>> free_;  // by size
  Entries entries_;                               // that nobody holds, least recently used first
  Entries held_;
  std::unordered_map<uint64_t, Entry*> known_;
};

}  // namespace tierkv::cuda
