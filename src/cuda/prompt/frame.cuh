// frame.cuh — rows into the Hadamard frame and out of it (quant/frame.h), a warp a row: lane l has channels l, l + 32 and so on.
#pragma once

#include "cuda/launch/prompt.h"
#include "cuda/simt/warp.cuh"

namespace tierkv::cuda {

// `dim`: the launch's channels, kEach · 32 at most; a constant where the caller has one.
template <uint32_t kEach>
TIERKV_DEVICE void turn_row(const PromptLaunch& launch, uint32_t dim, float (&x)[kEach], bool enter) {
  const uint32_t lane = lane_now(), run = dim & (~dim + 1u);  // channels that are transformed together
  const float norm = rsqrtf(static_cast<float>(run));
  const auto scale = [&] {
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) x[k] *= launch.minus[k] >> lane & 1u ? -norm : norm;
  };
  if (enter) scale();
#pragma unroll
  for (uint32_t half = 1; half < 32; half *= 2) {
    if (half >= run) break;
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) {
      const float other = __shfl_xor_sync(~0u, x[k], half);
      x[k] = (lane & half) != 0 ? other - x[k] : x[k] + other;
    }
  }
#pragma unroll
  for (uint32_t half = 1; half < kEach; half *= 2) {
    if (32 * half >= run) break;
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) {
      if ((k & half) != 0) continue;
      const float a = x[k], b = x[k + half];
      x[k] = a + b, x[k + half] = a - b;
    }
  }
  if (!enter) scale();
}

}  // namespace tierkv::cuda
