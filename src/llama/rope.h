// rope.h — what a RoPE node of libllama's graph does to a head, as pairs of channels and angles.
//
// ggml's own operation is asked, on unit vectors at position 1: the image of channel j shows its partner and the angle. Pair order,
// partial rotary dimensions, frequency factors and every kind of scaling come with it; a constant factor on the length is left out.
// Error:    angles are right to some 1e-7 of themselves, ggml's own rounding included.
// Threads:  pure functions of their arguments.
#pragma once

#include <ggml.h>

#include <array>
#include <cstdint>
#include <vector>

#include "tierkv/rope.h"
#include "tierkv/status.h"

namespace tierkv::llama {

struct RopeNode {
  std::array<int32_t, GGML_MAX_OP_PARAMS / sizeof(int32_t)> params{};
  std::vector<float> factors;  // of frequencies; empty: none
  bool operator==(const RopeNode&) const = default;
};

// REQUIRES: node->op == GGML_OP_ROPE, and its frequency factors, if any, are weights (their data is there before the graph runs).
RopeNode read_rope(const ggml_tensor* node);

// rows, [count][head_dim], as ggml turns them at `position`.
Result<std::vector<float>> apply_rope(const RopeNode& rope, uint32_t head_dim, const std::vector<float>& rows, int32_t position);

Result<calib::Rope> rope_of(const RopeNode& rope, uint32_t head_dim);

}  // namespace tierkv::llama
