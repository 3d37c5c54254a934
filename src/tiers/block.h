// block.h — a sealed block of one KV head: up to 256 tokens' keys and values as codec bytes, shared by reference count.
//
// Layout in the arena: [key bytes, padded to 64][value bytes, padded to 8][Block]. Codes start where a cache line does, and the
// Block has its place in what the line of the last value bytes leaves. The bytes never change after sealing, so forks share them
// and a checksum over them means something. What differs between sequences (how many rows are used, which are evicted) is in the
// BlockRef.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "attn/attention.h"
#include "base/arena.h"
#include "quant/codec_set.h"
#include "tierkv/config.h"
#include "tierkv/stats.h"

namespace tierkv::tiers {

using attn::kDeadPosition;
using quant::CodecEntry;

struct Block {
  std::atomic<uint32_t> refs{1};
  Tier tier = Tier::warm;
  const CodecEntry* codec = nullptr;
  const CodecEntry* source = nullptr;  // what the rows were decoded from; null: the hot tail's own 16-bit rows
  uint64_t checksum = 0;

  static size_t padded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }
  // Of keys and values with their padding: where the Block lies.
  static size_t data_bytes(const CodecEntry& codec);
  static size_t total_bytes(const CodecEntry& codec) { return data_bytes(codec) + sizeof(Block); }
  size_t data_bytes() const { return data_bytes(*codec); }
  size_t total_bytes() const { return total_bytes(*codec); }
  size_t payload_bytes() const { return codec->key->bytes() + codec->value->bytes(); }

  // The start of the whole piece.
  std::byte* key_data() { return reinterpret_cast<std::byte*>(this) - data_bytes(); }
  std::byte* value_data() { return key_data() + padded(codec->key->bytes(), 64); }
  std::span<const std::byte> keys() const { return {reinterpret_cast<const std::byte*>(this) - data_bytes(), codec->key->bytes()}; }
  std::span<const std::byte> values() const {
    return {reinterpret_cast<const std::byte*>(this) - data_bytes() + padded(codec->key->bytes(), 64), codec->value->bytes()};
  }
  uint64_t compute_checksum() const;

  // An unsealed block, its bytes undefined; null when the arena has no room.
  static Block* allocate(Arena& arena, const CodecEntry& codec, Tier tier, Arena::Use use);
  void retain() { refs.fetch_add(1, std::memory_order_relaxed); }
  static void release(Arena& arena, Block* block);
};
static_assert(sizeof(Block) == 32 && alignof(Block) == 8);
inline size_t Block::data_bytes(const CodecEntry& codec) {
  return padded(padded(codec.key->bytes(), 64) + codec.value->bytes(), alignof(Block));
}

// A sequence's hold on a block. Plain data: stream.cc owns the references and arrays.
struct BlockRef {
  Block* block = nullptr;
  uint32_t* positions = nullptr;  // [block tokens], kDeadPosition where evicted; null: first_position + row, all alive
  float* stats = nullptr;         // [block tokens][signals]; null when the policy keeps none
  uint32_t first_position = 0;
  uint16_t rows = 0;  // rows in use: 0..block tokens
  uint16_t live = 0;  // of those, not evicted

  uint32_t position(uint32_t row) const { return positions ? positions[row] : first_position + row; }
  bool alive(uint32_t row) const { return !positions || positions[row] != kDeadPosition; }
  // REQUIRES: live > 0.
  uint32_t first_live_position() const {
    uint32_t row = 0;
    while (!alive(row)) ++row;
    return position(row);
  }
};

}  // namespace tierkv::tiers
