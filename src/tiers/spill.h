// spill.h — archive blocks of a stream go to the cold file, oldest first; memory keeps a summary of each (summary.h).
//
// Threads:  REQUIRES: the sequence's lock is held.
#pragma once

#include <cstdint>

#include "tiers/stream.h"

namespace tierkv::tiers {

// Spills the oldest archive blocks that are nobody else's as well, until `wanted` bytes are free or none is left; promoted ones
// stay. Adds what became free to `freed`. The status is the first that the file gave: that block and the later ones stay in memory.
// Throws bad_alloc before it changes anything of a block.
[[nodiscard]] Status spill_oldest(const StreamEnv& env, HeadStream& s, uint64_t wanted, uint64_t& freed);

}  // namespace tierkv::tiers
