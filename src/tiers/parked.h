// parked.h — the tokens of an idle sequence as a deep archive in the arena, and where they go back to.
//
// Packed:   one piece of the arena where it has one. When a budget is so full that it has none, the extents of the very blocks that
//           the bytes take the place of: parking is what an operator does when memory is short, and must not need more of it first.
// Invariant: the sequence's streams hold nothing in [first, end) of the layers in `layers`; everything else is as it was.
// Threads:  the sequence's lock protects it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/arena.h"
#include "tierkv/cache.h"
#include "tiers/block.h"

namespace tierkv::tiers {

class PackedBytes {
 public:
  PackedBytes() = default;
  ~PackedBytes() { release(); }
  PackedBytes(const PackedBytes&) = delete;
  PackedBytes& operator=(const PackedBytes&) = delete;

  // In one piece. False: the arena has no room.
  [[nodiscard]] bool store(Arena& arena, std::span<const std::byte> bytes);
  // In the memory of as many of `blocks` as it takes, which become null: their owner no longer has them. Blocks that somebody else
  // refers to are left alone. False: they are too small, nothing was changed.
  [[nodiscard]] bool take_over(Arena& arena, std::span<const std::byte> bytes, std::span<Block*> blocks);
  // Outside the arena and its limit: the last resort of a way back that must not fail.
  void keep(std::vector<std::byte> bytes) noexcept;
  std::vector<std::byte> read() const;
  void release();

  size_t size() const { return size_; }
  size_t held() const;  // with what rounding adds

 private:
  struct Piece {
    std::byte* at;
    size_t bytes;
    MemoryTag tag;  // as allocated
  };
  void write(std::span<const std::byte> bytes);

  Arena* arena_ = nullptr;
  std::vector<Piece> pieces_;
  std::vector<std::byte> kept_;
  size_t size_ = 0;
};

struct Parked {
  uint32_t first = 0, end = 0;
  std::vector<bool> layers;         // which of the model's
  std::vector<uint32_t> warm_from;  // [layer][kv head]: the first position that was warm and not archived; end: none
  CalibrationPtr calibration;       // whose tables decode it, whatever the cache is given later
  PackedBytes bytes;
  uint64_t checksum = 0;  // of them
  DeepReport report;

  // Over layers and KV heads.
  uint64_t rows(uint32_t kv_heads) const;
};

}  // namespace tierkv::tiers
