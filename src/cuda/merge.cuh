// merge.cuh — the partial states of a task become its output, in the thread block that finishes the task's last segment.
#pragma once

#include "cuda/common.cuh"
#include "cuda/desc.h"

namespace tierkv::cuda {

// A sink's logit joins a row's softmax with a value of zero; a row that sees nothing is zeros. Sums and maxima are checked, so that
// a row that left the range of floats is zeros and says so.
__device__ inline void merge_task(const Launch& launch, uint32_t task_index) {
  const TaskDesc& task = launch.tasks[task_index];
  const uint32_t dim = launch.head_dim, group = launch.group;
  for (uint32_t i = threadIdx.x; i < group * dim; i += blockDim.x) {
    const uint32_t row = i / dim, channel = i % dim;
    float top = -INFINITY;
#pragma unroll 8
    for (uint32_t p = 0; p < task.partials; ++p) {
      const float other = __ldcg(launch.partial_top + (task.first_partial + p) * group + row);
      top = other <= top ? top : other;
    }
    const float sink = launch.sink_logits ? launch.sink_logits[task.first_head + row] * kLog2E : -INFINITY;
    const float both = fmaxf(top, sink);
    float sum = launch.sink_logits ? exp2f(sink - both) : 0.0f, value = 0.0f;
#pragma unroll 8
    for (uint32_t p = 0; p < task.partials; ++p) {
      const size_t at = static_cast<size_t>(task.first_partial + p) * group + row;
      const float own = __ldcg(launch.partial_top + at);
      const float share = own == -INFINITY ? 0.0f : exp2f(own - both);
      sum += share * __ldcg(launch.partial_sum + at);
      value += share == 0.0f ? 0.0f : share * __ldcg(launch.partial_out + at * dim + channel);
    }
    const float result = sum > 0.0f ? value / sum : 0.0f;
    const bool fine = isfinite(result) && isfinite(sum) && (top == -INFINITY || isfinite(top));
    const size_t to = static_cast<size_t>(task.first_row + row);
    launch.out[to * dim + channel] = fine ? result : 0.0f;
    if (!fine) launch.failed[task_index] = 1;
    if (launch.lse && channel == 0) launch.lse[to] = sum > 0.0f && fine ? (both + log2f(sum)) / kLog2E : -INFINITY;
  }
}

// Called by all threads after the segment's state is stored.
__device__ inline void finish_segment(const Launch& launch, const SegmentDesc& segment) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(launch.arrived + segment.task, 1u) + 1 == launch.tasks[segment.task].partials;
    if (last) launch.arrived[segment.task] = 0;
  }
  __syncthreads();
  if (last) {
    __threadfence();
    merge_task(launch, segment.task);
  }
  __syncthreads();
}

}  // namespace tierkv::cuda
