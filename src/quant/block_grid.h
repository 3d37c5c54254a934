// block_grid.h — a block of affine.h's from rows to codes and back, with kernels or in plain C++: the same bits either way.
//
// Threads: pure functions; scratch is a thread's own and kept, so that encoding allocates nothing once a thread has done one block.
#pragma once

#include "quant/affine.h"
#include "quant/isa.h"

namespace tierkv::quant {

// What the functions below need to know of a codec.
struct BlockParts {
  const Recipe& recipe;
  Side side;
  BlockShape shape;
  const Lanes& lanes;
  const MetaFormat& meta;
  const PackedSide& packed;
  const Kernels* kernels;  // null: plain C++
};

// `feedback`: codes are not the nearest ones, but those whose errors answer for each other. REQUIRES then: keys, one uniform grid a
// token.
Status encode_block(const BlockParts& parts, const float* rows, std::span<std::byte> out, const ErrorFeedback* feedback = nullptr);

void decode_block(const BlockParts& parts, std::span<const std::byte> in, uint32_t first, uint32_t count, float* out);

}  // namespace tierkv::quant
