// rope.h — RoPE as a model has it: pairs of channels that turn by a fixed angle per position.
//
// However a model scales, mixes or orders its rotary channels, a key at position s is the key before RoPE with each pair turned by
// s·angle (and perhaps lengthened by a constant, which changes nothing here).
#pragma once

#include <cstdint>
#include <vector>

namespace tierkv::calib {

struct RopePair {
  uint16_t a = 0, b = 0;  // channels: (a, b) -> (a·cos - b·sin, a·sin + b·cos)
  double angle = 0.0;     // radians per position
  bool operator==(const RopePair&) const = default;
};

// Of one layer. Channels that are not named do not turn; no pairs at all: a layer without RoPE.
using Rope = std::vector<RopePair>;

}  // namespace tierkv::calib
