// mirror.h — copies of sealed blocks on the device, each made once, found again by the checksum of its bytes.
//
// A sealed block never changes, and forks share it, so its checksum and its length name its bytes. Nobody tells the mirror that a
// block was released: when it needs room, the copies that were used longest ago go, and those that the call under way uses stay.
// Layout:  [key bytes, padded to 128][value bytes], 128-byte aligned, in slabs of 32 MiB; a place is used again by blocks of its
// size.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cuda/runtime.h"

namespace tierkv::cuda {

class Mirror {
 public:
  explicit Mirror(uint64_t byte_limit) : limit_(byte_limit) {}

  struct Place {
    const uint8_t* keys;
    const uint8_t* values;
  };

  // A new call begins: what it asks for stays until the next one.
  void begin_call() { ++call_; }
  // A block that is there, by the bytes of its sides.
  std::optional<Place> find(uint64_t sealed, size_t key_bytes, size_t value_bytes);
  // One that is not. resource_exhausted: everything there is belongs to this call. The host's bytes, in memory that is not pinned,
  // are no longer needed when this returns.
  Result<Place> place(uint64_t sealed, std::span<const std::byte> keys, std::span<const std::byte> values, cudaStream_t stream);

  uint64_t bytes() const { return slabs_.size() * kSlab; }
  uint64_t blocks() const { return known_.size(); }
  uint64_t uploads() const { return uploads_; }

 private:
  static constexpr size_t kSlab = size_t{32} << 20, kAlign = 128;
  struct Entry {
    uint64_t sealed;
    size_t size;
    uint8_t* at;
    size_t value_offset;
    uint64_t used;  // by which call
  };
  using Entries = std::list<Entry>;  // least recently used first

  static uint64_t name_of(uint64_t sealed, size_t key_bytes, size_t value_bytes);
  static size_t rounded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
  Result<uint8_t*> take(size_t size);
  bool drop_oldest();

  const uint64_t limit_;
  uint64_t call_ = 0, uploads_ = 0;
  std::vector<std::unique_ptr<Buffer>> slabs_;
  size_t slab_used_ = kSlab;
  std::map<size_t, std::vector<uint8_t*>> free_;  // by size
  Entries entries_;
  std::unordered_map<uint64_t, Entries::iterator> known_;
};

}  // namespace tierkv::cuda
