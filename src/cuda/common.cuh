// common.cuh — what all paths share: the threads of a block and the Hadamard frame.
#pragma once

#include "cuda/desc.h"
#include "cuda/reading.h"

namespace tierkv::cuda {

inline constexpr uint32_t kThreads = 512;
inline constexpr float kLog2E = 1.4426950408889634f;

// Signs, then a Walsh–Hadamard transform of each run of channels (forward), or the transform and then the signs: eight columns,
// rows[channel][8] in shared memory, all threads of a thread block.
__device__ inline void rotate(float* rows, uint32_t dim, bool forward) {
  const uint32_t run = dim & (~dim + 1u);
  const float norm = rsqrtf(static_cast<float>(run));
  for (uint32_t i = threadIdx.x; forward && i < dim * 8; i += kThreads) rows[i] *= frame_sign(dim, i / 8) * norm;
  __syncthreads();
  for (uint32_t half = 1; half < run; half *= 2) {
    for (uint32_t i = threadIdx.x; i < dim / 2 * 8; i += kThreads) {
      const uint32_t pair = i / 8, row = i % 8;
      const uint32_t low = ((pair / half * 2 * half) + pair % half) * 8 + row, high = low + half * 8;
      const float a = rows[low], b = rows[high];
      rows[low] = a + b, rows[high] = a - b;
    }
    __syncthreads();
  }
  for (uint32_t i = threadIdx.x; !forward && i < dim * 8; i += kThreads) rows[i] *= frame_sign(dim, i / 8) * norm;
  __syncthreads();
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
