// common.cuh — what all paths share: the threads of a block, and where a state goes.
#pragma once

#include "cuda/launch/desc.h"
#include "cuda/launch/reading.h"
#include "cuda/simt/warp.cuh"

namespace tierkv::cuda {

inline constexpr uint32_t kThreads = 512;
inline constexpr float kLog2E = 1.4426950408889634f;

TIERKV_DEVICE float sum_over_warp(float x) {
#pragma unroll
  for (int d = 16; d != 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

// The state of a segment goes where the merge will look for it: up to eight rows of a group from `first` on, values[channel][8].
__device__ inline void store_partial(const Launch& launch, const SegmentDesc& segment, uint32_t first, const float* values,
                                     const float* top, const float* sum) {
  const uint32_t dim = launch.head_dim, rows = min(8u, launch.group - first);
  const size_t to = static_cast<size_t>(segment.partial) * launch.group + first;
  for (uint32_t i = threadIdx.x; i < rows * dim; i += blockDim.x) launch.partial_out[to * dim + i] = values[i % dim * 8 + i / dim];
  if (threadIdx.x < rows) {
    launch.partial_top[to + threadIdx.x] = top[threadIdx.x];
    launch.partial_sum[to + threadIdx.x] = sum[threadIdx.x];
  }
}

}  // namespace tierkv::cuda
