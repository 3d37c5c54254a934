// int8.h — symmetric 8 bits: per token, one fp16 scale per group of channels.
//
// Layout:   [codes, offset binary: code = q + 128, q in -127..127 (lanes.h)][f16 scale per group], affine.h
// Groups:   head_dim, at most 128; "-gN" changes it.
// Error:    |x - x'| <= scale/2, scale = largest magnitude of the group / 127, rounded up to the next fp16. Zero is exact.
// REQUIRES: tokens % 16 == 0. Refused: non-finite values, magnitudes past 127·65504.
#pragma once

#include "quant/codec.h"

namespace tierkv::quant {

Result<std::unique_ptr<Codec>> make_int8(const CodecSpec& spec, Side side, const BlockShape& shape);

}  // namespace tierkv::quant
