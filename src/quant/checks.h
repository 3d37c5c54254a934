// checks.h — what every codec refuses, said once.
#pragma once

#include <span>

#include "quant/codec.h"

namespace tierkv::quant {

// Shapes the block format knows: 1..256 tokens, head_dim 32..256 in steps of 16.
Status check_shape(const BlockShape& shape);
// And those packed codes need: tokens in steps of 16 as well.
Status check_packed_shape(const BlockShape& shape);

// Every value finite; the error names the first token and channel that is not.
Status check_finite(const float* rows, const BlockShape& shape);

Status check_size(size_t have, size_t want);

}  // namespace tierkv::quant
