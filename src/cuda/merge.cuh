// merge.cuh — the partial states of a task become its output, in the thread block that finishes the task's last segment.
#pragma once

#include "cuda/common.cuh"
#include "cuda/desc.h"

namespace tierkv::cuda {

// A result, finite, in the type that the caller wants, rounded to the nearest: to the bits that row_moves.h makes of floats.
__device__ inline void store_result(const Launch& launch, size_t at, float x) {
  auto* const halves = reinterpret_cast<uint16_t*>(launch.out);
  const uint32_t bits = __float_as_uint(x);
  if (launch.out_type == 0) launch.out[at] = x;
  else if (launch.out_type == 1) halves[at] = __half_as_ushort(__float2half(x));
  else halves[at] = static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

// A sink's logit joins a row's softmax with a value of zero; a row that sees nothing is zeros. Sums and maxima are checked, so that
// a row that left the range of floats is zeros and says so.
__device__ inline void merge_task(const Launch& launch, const SegmentDesc& segment) {
  const uint32_t dim = launch.head_dim, group = launch.group, partials = segment.partials;
  for (uint32_t i = threadIdx.x; i < group * dim; i += blockDim.x) {
    const uint32_t row = i / dim, channel = i % dim;
    float top = -INFINITY, sum = 0.0f, value = 0.0f;
    constexpr uint32_t kAtOnce = 9;  // loads that wait for memory together: half of what a long sequence alone on a device has
#pragma unroll 1
    for (uint32_t first = 0; first < partials; first += kAtOnce) {
      float tops[kAtOnce], sums[kAtOnce], values[kAtOnce], both = top;
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k) {
        const size_t at = static_cast<size_t>(segment.first_partial + min(first + k, partials - 1)) * group + row;
        tops[k] = __ldcg(launch.partial_top + at), sums[k] = __ldcg(launch.partial_sum + at);
        values[k] = __ldcg(launch.partial_out + at * dim + channel);
        if (first + k >= partials) tops[k] = -INFINITY;
      }
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k) both = fmaxf(both, tops[k]);
      const float shrink = top == -INFINITY ? 0.0f : exp2f(top - both);
      sum *= shrink, value *= shrink, top = both;
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k) {
        // A top that is not a number must not vanish: it has to reach the sum.
        const float share = tops[k] == -INFINITY ? 0.0f : exp2f(tops[k] - both);
        sum += share * sums[k];
        value += share == 0.0f ? 0.0f : share * values[k];
      }
    }
    const float sink = launch.sink_logits ? launch.sink_logits[launch.tasks[segment.task].first_head + row] * kLog2E : -INFINITY;
    const float both = fmaxf(top, sink), shrink = top == -INFINITY ? 0.0f : exp2f(top - both);
    sum = sum * shrink + (launch.sink_logits ? exp2f(sink - both) : 0.0f), value *= shrink;
    const float result = sum > 0.0f ? value / sum : 0.0f;
    const bool fine = isfinite(result) && isfinite(sum) && (top == -INFINITY || isfinite(top));
    const size_t to = static_cast<size_t>(segment.first_row + row);
    store_result(launch, to * dim + channel, fine ? result : 0.0f);
    if (!fine) launch.failed[segment.task] = 1;
    if (launch.lse && channel == 0) launch.lse[to] = sum > 0.0f && fine ? (both + log2f(sum)) / kLog2E : -INFINITY;
  }
}

// Called by all threads after the segment's state is stored.
__device__ inline void finish_segment(const Launch& launch, const SegmentDesc& segment) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(launch.arrived + segment.task, 1u) + 1 == segment.partials;
    if (last) launch.arrived[segment.task] = 0;
  }
  __syncthreads();
  if (last) {
    __threadfence();
    merge_task(launch, segment);
  }
  __syncthreads();
}

}  // namespace tierkv::cuda
