// ruvector.h — the quantizers of ruvector-attention: asymmetric and symmetric, per token and head, round half to even.
//
// Codecs:   asym (value = scale·(code - zero point)) and sym (value = scale·(code - 2^(bits-1))), 2..8 bits, one scale per token
//           over the whole head_dim, stored as f32 like it does: [codes, lanes.h][f32 scale per token][asym: f32 zeros].
// Error:    |x - x'| <= scale/2 + 2^-22·max|x|; scale = (max - min)/(2^bits - 1), or max|x|/(2^(bits-1) - 1) for sym.
// Departs:  a constant group is exact here (scale 1, zero point -x); ruvector-attention stores scale 1, zero point 0, which rounds
//           it to the nearest integer in 0..2^bits-1. Groups with a range under 1.2e-7 count as constant, as they do there.
//
// The free functions work on one vector over all heads, one code a byte, for tests and comparisons.
#pragma once

#include "quant/codec.h"

namespace tierkv::quant {

Result<std::unique_ptr<Codec>> make_asym(const CodecSpec& spec, Side side, const BlockShape& shape);
Result<std::unique_ptr<Codec>> make_sym(const CodecSpec& spec, Side side, const BlockShape& shape);

struct QuantizedTensor {
  std::vector<uint8_t> data;
  std::vector<float> scales;       // per head
  std::vector<float> zero_points;  // per head, in units of codes
  uint8_t bits = 0;
};

struct SymmetricTensor {
  std::vector<uint8_t> data;
  float scale = 0;
  uint8_t bits = 0;
};

float round_to_nearest_even(float x);

// Refuse widths outside 2..8, empty tensors, non-finite values, and (asymmetric) lengths that num_heads does not divide.
Result<QuantizedTensor> quantize_asymmetric(std::span<const float> tensor, uint32_t num_heads, uint32_t bits);
Result<SymmetricTensor> quantize_symmetric(std::span<const float> tensor, uint32_t bits);

std::vector<float> dequantize(const QuantizedTensor& tensor);
std::vector<float> dequantize(const SymmetricTensor& tensor);

}  // namespace tierkv::quant
