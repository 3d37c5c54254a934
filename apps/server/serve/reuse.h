// reuse.h — how much of a conversation in the cache can stand for the beginning of a new prompt.
//
// The newest tokens of a sequence are kept best: a hot tail of 16-bit rows, then a warm tier, then the archive. A sequence that is
// cut short ends in tokens that have been coded since they were new. What a cut leaves of the recent tiers decides how many tokens
// before it are read again, so that the end of the prompt is as precise as if it had just been read:
//   the cut is in the hot tail      nothing, while three quarters of the hot tier are left
//   it is in the warm tier          the hot tier
//   it is in the archive            hot and warm tier
#pragma once

#include <cstdint>
#include <span>

#include "engine/tokenizer.h"

namespace tierkv::serve {

using engine::Tokens;

// Where the tiers of a sequence begin, and how long they are for a new one.
struct TierBounds {
  uint32_t tail_start = 0;   // the first position that is still a 16-bit row, in the layer that has fewest
  uint32_t archive_end = 0;  // the first position behind the archive
  uint32_t hot = 0, warm = 0;
};

// Tokens at the beginning that two texts share.
uint32_t common_prefix(std::span<const llama_token> a, std::span<const llama_token> b);

// How many of the first `match` tokens of a sequence of `length` tokens stay; the rest of the prompt is read.
uint32_t reusable(uint32_t match, uint32_t length, const TierBounds& bounds);

}  // namespace tierkv::serve
