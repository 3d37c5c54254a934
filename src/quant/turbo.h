// turbo.h — TurboQuant-MSE (arXiv 2504.19874): Hadamard frame, the token's length, and a Lloyd–Max codebook for its coordinates.
//
// Layout:   [codes, lanes.h][f16 root mean square per token]: x' = rms·level[code] in the rotated frame. The rms (length
//           over the square root of head_dim) never exceeds the largest magnitude, so it fits fp16 whenever the row does.
// Codebook: the optimal scalar quantizer of the unit normal, which rotated coordinates of a row approach; 2, 3 and 4 bits.
// Error:    about 0.34, 0.19 and 0.097 of the row's length; no bound per value.
// REQUIRES: tokens % 16 == 0. Refused: non-finite values, rows whose rms is past 65504.
#pragma once

#include "quant/codec.h"

namespace tierkv::quant {

Result<std::unique_ptr<Codec>> make_turbo(const CodecSpec& spec, Side side, const BlockShape& shape);

// 2^bits ascending levels, bits 2..4. Part of the block format.
const float* lloyd_max_levels(uint32_t bits);

}  // namespace tierkv::quant
