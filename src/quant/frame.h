// frame.h — the orthonormal frames codecs store rows in, and the way there and back.
//
// Frame::hadamard: x -> H·D·x/sqrt(n) with fixed pseudo-random signs D, a fast Walsh–Hadamard transform over the largest power of
// two that divides head_dim, applied to each run of that many channels (head_dim 96 is three runs of 32). Orthonormal, so dot
// products are unchanged and the inverse is D·H/sqrt(n). The signs depend on head_dim alone and are part of the block format.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quant/codec.h"

namespace tierkv::quant {

// In place on `count` rows of `head_dim` floats. Frame::plain and Frame::block are the identity.
void to_frame(Frame frame, float* rows, uint32_t count, uint32_t head_dim);
void to_frame(Frame frame, const float* rows, uint32_t count, uint32_t head_dim, float* out);  // the same, beside the rows
void from_frame(Frame frame, float* rows, uint32_t count, uint32_t head_dim);

// Into Frame::hadamard with every channel times a factor of its own before, in one go: the frame's signs and its norm lie in the
// factors already (hadamard_factors()). As to_frame() of the products, but for rounding. REQUIRES: out apart from rows, or the
// same.
std::vector<float> hadamard_factors(std::span<const float> factors);
const float* hadamard_signs(uint32_t head_dim);  // the same of factors of 1
uint32_t hadamard_run(uint32_t head_dim);        // channels that are transformed together
void to_hadamard_by(const float* factors, const float* rows, uint32_t count, uint32_t head_dim, float* out);

}  // namespace tierkv::quant
