// merge.cuh — the partial states of a task become its output, in the thread block that finishes the task's last segment.
//
// All other thread blocks are done by then, so what counts is how long it takes: the states' values come into shared memory, and
// while they are on their way a warp weighs the states of a row against each other.
#pragma once

#include "cuda/decode/common.cuh"
#include "cuda/launch/desc.h"

namespace tierkv::cuda {

// In shared memory, where nothing else is any more. States are taken a round at a time; rows are kept from round to round.
struct MergeShared {
  static constexpr uint32_t kRound = 64;
  float shares[kRound * kMostGroup];  // of a row's states, relative to the largest maximum
  float tops[kMostGroup], sums[kMostGroup], shrinks[kMostGroup];
  float4 values[1];  // of a round's states: as many as there is room for
};
// The least that a thread block has to have, of heads of up to `dim` channels.
inline constexpr uint32_t merge_bytes(uint32_t dim) { return sizeof(MergeShared) + kMostGroup * dim * sizeof(float); }

// A warp has a row: shares of the states from `first` on. A sink's logit joins behind the last ones. A maximum that is not a number
// makes the sum none.
__device__ inline void weigh_states(const Launch& launch, const SegmentDesc& segment, uint32_t first, uint32_t count,
                                    MergeShared& all) {
  constexpr uint32_t kEach = MergeShared::kRound / 32;
  const uint32_t thread = thread_now(), lane = thread % 32, group = launch.group, end = first + count;
  const bool last = end == segment.partials;
  for (uint32_t row = thread / 32; row < group; row += blockDim.x / 32) {
    const float before = first == 0 ? -INFINITY : all.tops[row];
    float tops[kEach], sums[kEach], top = before, sum = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) {
      const uint32_t state = first + lane + 32 * k;
      const size_t at = static_cast<size_t>(segment.first_partial + min(state, end - 1)) * group + row;
      tops[k] = __ldcg(launch.partial_top + at), sums[k] = __ldcg(launch.partial_sum + at);
      if (state >= end) tops[k] = -INFINITY, sums[k] = 0.0f;
    }
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) top = fmaxf(top, tops[k]);
#pragma unroll
    for (int d = 16; d != 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    float sink = -INFINITY;
    if (last && launch.sink_logits) {
      sink = launch.sink_logits[launch.tasks[segment.task].first_head + row] * kLog2E, top = fmaxf(top, sink);
    }
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) {
      const float share = tops[k] == -INFINITY ? 0.0f : exp2f(tops[k] - top);
      all.shares[(lane + 32 * k) * group + row] = share, sum += share * sums[k];
    }
    sum = sum_over_warp(sum);
    __syncwarp();  // all have read what is kept of the row
    if (lane == 0) {
      const float shrink = before == -INFINITY ? 0.0f : exp2f(before - top);
      all.tops[row] = top, all.shrinks[row] = shrink;
      all.sums[row] = (first == 0 ? 0.0f : all.sums[row] * shrink) + sum + (sink == -INFINITY ? 0.0f : exp2f(sink - top));
    }
  }
}

// A result, finite, in the type that the caller wants, rounded to the nearest: to the bits that row_moves.h makes of floats.
__device__ inline void store_result(const Launch& launch, size_t at, float x) {
  auto* const halves = reinterpret_cast<uint16_t*>(launch.out);
  const uint32_t bits = __float_as_uint(x);
  if (launch.out_type == 0) launch.out[at] = x;
  else if (launch.out_type == 1) halves[at] = __half_as_ushort(__float2half(x));
  else halves[at] = static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

// What channel `i` of a task's rows has become. A row that sees nothing is zeros, and so is one that left the range of floats,
// which is said.
__device__ inline void put_result(const Launch& launch, const SegmentDesc& segment, uint32_t row, uint32_t i, float value,
                                  const MergeShared& all) {
  const float sum = all.sums[row], result = sum > 0.0f ? value / sum : 0.0f;
  const bool fine = isfinite(result) && isfinite(sum);
  store_result(launch, static_cast<size_t>(segment.first_row) * launch.head_dim + i, fine ? result : 0.0f);
  if (!fine) launch.failed[segment.task] = 1;
  if (launch.lse && i == row * launch.head_dim)
    launch.lse[segment.first_row + row] = sum > 0.0f && fine ? (all.tops[row] + log2f(sum)) / kLog2E : -INFINITY;
}

// A call, so that the loops of those who call it keep their registers.
// `room`: bytes of shared memory. REQUIRES: merge_bytes() of it; head_dim is a multiple of four.
__device__ __noinline__ inline void merge_task(const Launch& launch, const SegmentDesc& segment, MergeShared& all, uint32_t room) {
  const uint32_t thread = thread_now(), group = launch.group, dim = launch.head_dim, rows = group * dim,
                 partials = segment.partials;
  const uint32_t fitting = min(MergeShared::kRound, static_cast<uint32_t>((room - sizeof all) / sizeof(float)) / rows);
  const float* const values = reinterpret_cast<const float*>(all.values);
  // What rounds leave for each other lies where the first one's first state was.
  float* const kept = launch.partial_out + static_cast<size_t>(segment.first_partial) * rows;
  for (uint32_t first = 0; first < partials; first += fitting) {
    const uint32_t count = min(partials - first, fitting);
    const auto* const from =
        reinterpret_cast<const float4*>(launch.partial_out + static_cast<size_t>(segment.first_partial + first) * rows);
    for (uint32_t i = thread; i < count * (rows / 4); i += blockDim.x) fetch16(shared_address(all.values + i), from + i);
    weigh_states(launch, segment, first, count, all);
    wait_for_fetched();
    __syncthreads();
    for (uint32_t i = thread; i < rows; i += blockDim.x) {
      const uint32_t row = i / dim;
      float value = first == 0 ? 0.0f : kept[i] * all.shrinks[row];
#pragma unroll 4
      for (uint32_t state = 0; state < count; ++state) {
        const float share = all.shares[state * group + row], x = values[state * rows + i];
        value += share == 0.0f ? 0.0f : share * x;  // x may be no number then
      }
      if (first + count == partials) put_result(launch, segment, row, i, value, all);
      else kept[i] = value;
    }
    __syncthreads();
  }
}

// Called by all threads after the segment's state is stored, and when shared memory, `room` bytes at `memory`, is free.
__device__ inline void finish_segment(const Launch& launch, const SegmentDesc& segment, uint8_t* memory, uint32_t room) {
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
    merge_task(launch, segment, *reinterpret_cast<MergeShared*>(memory), room);
  }
  __syncthreads();
}

}  // namespace tierkv::cuda
