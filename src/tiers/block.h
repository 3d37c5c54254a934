// block.h — a sequence's hold on a sealed block: which rows are in use, which were evicted, and their statistics.
//
// The block itself (header and bytes) is the store's (store/block_store.h) and may be shared; what is here is one sequence's own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attn/attention.h"
#include "quant/codec_set.h"
#include "store/block_store.h"
#include "tierkv/config.h"
#include "tierkv/stats.h"

namespace tierkv::tiers {

using attn::kDeadPosition;
using quant::CodecEntry;
using store::BlockHandle;
using store::BlockStore;
using store::Payload;
using store::Pin;

// What the store is told of codecs.
inline store::PayloadSizes payload_sizes(const CodecEntry& codec) { return {codec.key->bytes(), codec.value->bytes()}; }

// A payload that lies somewhere else.
inline store::BlockBytes split(std::span<const std::byte> payload, const CodecEntry& codec) {
  const store::PayloadSizes sizes = payload_sizes(codec);
  return {payload.first(sizes.keys), payload.subspan(sizes.value_offset(), sizes.values)};
}

// Plain data: stream.h's functions own the references and arrays.
struct BlockRef {
  BlockHandle block;
  BlockHandle base;               // promoted: `block` lies over this archive block, and is what everybody reads; null: it does not
  uint32_t* positions = nullptr;  // [block tokens], kDeadPosition where evicted; null: first_position + row, all alive
  float* stats = nullptr;         // [block tokens][signals]; null where none are kept
  uint32_t first_position = 0;
  uint16_t rows = 0;  // rows in use: 0..block tokens
  uint16_t live = 0;  // of those, not evicted

  bool promoted() const { return static_cast<bool>(base); }
  uint32_t tokens() const { return block.codec()->tokens; }
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
