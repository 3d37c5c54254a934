// beside.cuh — what the warm path and the plain one share. They run beside a fast one, where little room and little time is left:
// the four warps of a thread block take 64 rows together, so that each has few registers and runs through little code.
//
// Scores:  a warp has one tile of 16 rows against eight heads. Maxima are shared, so that all warps have one.
// Values:  a warp has 32 channels of all 64 rows, or of half of them where a head has 64.
// Weights: in shared memory, as fast.cuh has them: [tile][odd][head][8 tokens].
#pragma once

#include "cuda/decode/fast.cuh"
#include "cuda/decode/halves.cuh"
#include "cuda/decode/merge.cuh"

namespace tierkv::cuda {

inline constexpr uint32_t kBesideWarps = kPlainTiles, kBesideThreads = kBesideWarps * 32;
// Weights carry a power of two: halves have more below one than above.
inline constexpr float kBesideUp = 12.0f, kBesideDown = 1.0f / 4096.0f;

// Shared memory, in bytes from its begin.
template <uint32_t D>
struct BesideShape {
  static constexpr uint32_t kParts = D / 32, kSplit = kBesideWarps / kParts;  // of channels, and of rows where warps are left
  static constexpr uint32_t kWeights = 0, kTops = kWeights + kWeightBytes, kHeads = kTops + kBesideWarps * 32,
                            kQuery = kHeads + 128;
  static constexpr uint32_t kSums = kQuery + 2 * (D / 16 * 256), kSlots = kSums + 2560;
  // At the end of a segment, where rows were: the heads' sums, padded against bank conflicts.
  static constexpr uint32_t kRow = D + 8, kEndBytes = kSplit * 8 * kRow * 4;
};

// Of a warp: sums of its channels, and of its tile's weights. Lane (g, t) has channels 4g + 2m (+1) of the warp's 32 for heads 2t
// and 2t+1 in sums[m].
struct BesideState {
  float sums[2][4] = {};
  float total0 = 0.0f, total1 = 0.0f, offset0 = 0.0f, offset1 = 0.0f;
  float top0 = -1e30f, top1 = -1e30f;

  // A new maximum, of the scores of all warps' tiles at `tops`.
  TIERKV_DEVICE void raise(uint32_t tops) {
    float x0 = top0, x1 = top1;
#pragma unroll
    for (uint32_t w = 0; w < kBesideWarps; ++w) {
      const float2 x = load2f(tops + w * 32 + threadIdx.x % 4 * 8);
      x0 = fmaxf(x0, x.x), x1 = fmaxf(x1, x.y);
    }
    const float a0 = power2(top0 - x0), a1 = power2(top1 - x1);
    top0 = x0, top1 = x1;
    total0 *= a0, total1 *= a1, offset0 *= a0, offset1 *= a1;
#pragma unroll
    for (int m = 0; m < 2; ++m) sums[m][0] *= a0, sums[m][1] *= a1, sums[m][2] *= a0, sums[m][3] *= a1;
  }
};

// What a tile's scores rise to, for all warps.
TIERKV_DEVICE void share_tops(uint32_t tops, const float (&s)[4]) {
  const uint32_t lane = threadIdx.x % 32;
  float x0 = fmaxf(s[0], s[2]), x1 = fmaxf(s[1], s[3]);
#pragma unroll
  for (int d = 4; d < 32; d *= 2) x0 = fmaxf(x0, __shfl_xor_sync(~0u, x0, d)), x1 = fmaxf(x1, __shfl_xor_sync(~0u, x1, d));
  if (lane < 4) store2(tops + threadIdx.x / 32 * 32 + lane * 8, __float_as_uint(x0), __float_as_uint(x1));
}

// Weights of this warp's tile: of rows 2g (`even`) and 2g+1 for heads 2t and 2t+1.
TIERKV_DEVICE void store_weights(uint32_t weights, uint32_t even, uint32_t odd) {
  const uint32_t lane = threadIdx.x % 32, tile = threadIdx.x / 32;
  const uint32_t to = weights + tile * 256 + (lane / 4 + 2 * tile) % 8 * 16 + lane % 4 * 4;
  store1(to, transposed(even)), store1(to + 128, transposed(odd));
}

// The warps' sums together, in the plain frame, to where the merge looks: heads first_head .. of the group. `unit`: of the sums.
template <uint32_t D>
TIERKV_DEVICE void end_beside(const Launch& launch, const SegmentDesc& segment, uint32_t first_head, const BesideState& state,
                              float unit, bool hadamard, uint8_t* memory) {
  using S = BesideShape<D>;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  auto* const values = reinterpret_cast<float*>(memory + S::kSlots);
  const uint32_t totals = shared_address(memory + S::kTops), offsets = shared_address(memory + S::kHeads);
  const float2 total = over_rows(state.total0, state.total1), offset = over_rows(state.offset0, state.offset1);
  __syncthreads();  // all are done with what lay here
  if (lane < 4) {
    store2(totals + warp * 32 + t * 8, __float_as_uint(total.x), __float_as_uint(total.y));
    store2(offsets + warp * 32 + t * 8, __float_as_uint(offset.x), __float_as_uint(offset.y));
  }
  auto* const ends = values + S::kSplit * 8 * S::kRow;  // the maxima
  if (warp == 0 && lane < 4) ends[2 * t] = state.top0, ends[2 * t + 1] = state.top1;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    float* const at = values + (warp / S::kParts * 8 + 2 * t) * S::kRow + warp % S::kParts * 32 + 4 * g + 2 * m;
    *reinterpret_cast<float2*>(at) = {state.sums[m][0] * unit, state.sums[m][2] * unit};
    *reinterpret_cast<float2*>(at + S::kRow) = {state.sums[m][1] * unit, state.sums[m][3] * unit};
  }
  __syncthreads();
#pragma unroll 1
  for (uint32_t head = warp; head < 8 && first_head + head < launch.group; head += kBesideWarps) {
    float x[4] = {}, weights = 0.0f, base = 0.0f;
#pragma unroll
    for (uint32_t w = 0; w < kBesideWarps; ++w)
      weights += load1f(totals + w * 32 + head * 4), base += load1f(offsets + w * 32 + head * 4);
#pragma unroll
    for (uint32_t split = 0; split < S::kSplit; ++split) {
      const float4 y = *reinterpret_cast<const float4*>(values + (split * 8 + head) * S::kRow + part_of_row<D>() * 4);
      x[0] += y.x, x[1] += y.y, x[2] += y.z, x[3] += y.w;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = (x[e] + base) * kBesideDown;
    if (hadamard) turn_frame<D>(x, false);
    const size_t to = static_cast<size_t>(segment.partial) * launch.group + first_head + head;
    if (lane < D / 4) reinterpret_cast<float4*>(launch.partial_out + to * D)[lane] = {x[0], x[1], x[2], x[3]};
    const float top = ends[head];
    if (lane == 0) launch.partial_top[to] = top <= -1e30f ? -INFINITY : top, launch.partial_sum[to] = weights * kBesideDown;
  }
}

}  // namespace tierkv::cuda
