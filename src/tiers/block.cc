#include "tiers/block.h"

#include <new>

#include "base/checksum.h"

namespace tierkv::tiers {

uint64_t Block::compute_checksum() const {
  const uint64_t parts[2] = {tierkv::checksum(keys()), tierkv::checksum(values())};
  return tierkv::checksum(std::as_bytes(std::span(parts)));
}

Block* Block::allocate(Arena& arena, const CodecEntry& codec, Tier tier, Arena::Use use) {
  auto* memory = static_cast<std::byte*>(arena.allocate(total_bytes(codec), static_cast<MemoryTag>(tier), use));
  if (!memory) return nullptr;
  Block* block = new (memory + data_bytes(codec)) Block;
  block->tier = tier;
  block->codec = &codec;
  return block;
}

void Block::release(Arena& arena, Block* block) {
  // acq_rel: the last owner must see every read of the others finished before the bytes are reused.
  if (block->refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const size_t bytes = block->total_bytes();
  std::byte* memory = block->key_data();
  const MemoryTag tag = static_cast<MemoryTag>(block->tier);
  block->~Block();
  arena.release(memory, bytes, tag);
}

}  // namespace tierkv::tiers
