// checks.h — what every codec refuses, said once.
#pragma once

#include <span>

#include "quant/codec.h"

namespace tierkv::quant {

// Shapes the block format knows: 1..256 tokens, head_dim 32..256 in steps of 16.
Status check_shape(const BlockShape& shape);
// And those packed codes need: tokens in steps of 16 as well.
Status check_packed_shape(const BlockShape& shape);

// Rows past this are refused: sums and rotations of what is accepted stay far inside float.
inline constexpr float kMaxMagnitude = 1e30f;
// And stored grids past this: a rotated row is at most 16 times its largest value, a grid a few times its group.
inline constexpr float kMaxStored = 1e33f;

// Every value finite and at most kMaxMagnitude; the error names the first token and channel that is not.
Status check_finite(const float* rows, const BlockShape& shape);

Status check_size(size_t have, size_t want);

}  // namespace tierkv::quant
