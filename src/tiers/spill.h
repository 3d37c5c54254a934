// spill.h — archive blocks of a stream go to the cold file, oldest first, and what memory keeps of each: the bounds of its keys.
//
// Summary:  for every channel the smallest and the largest value of the block's keys as attention reads them, as 16-bit floats
//           rounded outwards: 4 bytes a channel. With them no score of a query can be above upper_bound().
// Threads:  REQUIRES, for all: the sequence's lock is held.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tiers/stream.h"

namespace tierkv::tiers {

// Spills the oldest archive blocks that are nobody else's as well, until `wanted` bytes are free or none is left; promoted ones
// stay. Adds what became free to `freed`. The status is the first that the file gave: that block and the later ones stay in memory.
// Throws bad_alloc before it changes anything of a block.
[[nodiscard]] Status spill_oldest(const StreamEnv& env, HeadStream& s, uint64_t wanted, uint64_t& freed);

// An upper bound of the dot product of `query` and any key of the block. `bounds`: 2 x head_dim floats, by widen_bounds().
float upper_bound(const float* query, const float* bounds, uint32_t head_dim);
void widen_bounds(const StreamEnv& env, std::span<const std::byte> summary, float* bounds);

}  // namespace tierkv::tiers
