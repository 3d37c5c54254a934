// halves.cuh — what the paths that read any run of rows share (tiles.cuh, staged.cuh): which rows are seen, codes as halves,
// and scores as weights.
#pragma once

#include "cuda/decode/common.cuh"
#include "cuda/simt/warp.cuh"

namespace tierkv::cuda {

TIERKV_DEVICE bool sees_row(const Launch& launch, const ViewDesc& view, uint32_t row) {
  if (row < view.begin || row >= view.end) return false;
  return view.mask == kNoMask || (launch.masks[view.mask * kMaskWords + row / 32] >> (row % 32) & 1u) != 0;
}

// Two halves each of four codes, less their middle.
TIERKV_DEVICE uint2 code_halves(uint32_t codes, uint32_t middle) {
  const uint32_t less = (0x6400u + middle) * 0x10001u;  // 1024 and the middle, as a half
  const __half2 by = *reinterpret_cast<const __half2*>(&less);
  // A code in the lower byte of 0x64.. is 1024 and the code.
  const uint32_t a = __byte_perm(codes, 0x64646464u, 0x4140), b = __byte_perm(codes, 0x64646464u, 0x4342);
  const __half2 x = __hsub2(*reinterpret_cast<const __half2*>(&a), by), y = __hsub2(*reinterpret_cast<const __half2*>(&b), by);
  return {*reinterpret_cast<const uint32_t*>(&x), *reinterpret_cast<const uint32_t*>(&y)};
}
// And what a table says of two of them, and of four.
TIERKV_DEVICE uint32_t level_pair(const __half* levels, uint32_t a, uint32_t b) {
  const __half2 both = __halves2half2(levels[a & 15u], levels[b & 15u]);
  return *reinterpret_cast<const uint32_t*>(&both);
}
TIERKV_DEVICE uint2 level_halves(const __half* levels, uint32_t codes) {
  return {level_pair(levels, codes, codes >> 8), level_pair(levels, codes >> 16, codes >> 24)};
}

TIERKV_DEVICE uint2 from_bf16(uint2 v) {
  return {pack_halves(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xFFFF0000u)),
          pack_halves(__uint_as_float(v.y << 16), __uint_as_float(v.y & 0xFFFF0000u))};
}

// Sums over all lanes that have the same columns.
TIERKV_DEVICE float2 over_rows(float a, float b) {
#pragma unroll
  for (int d = 4; d < 32; d *= 2) a += __shfl_xor_sync(~0u, a, d), b += __shfl_xor_sync(~0u, b, d);
  return {a, b};
}

// A softcap, and what is not seen: scores of two rows and two heads. `low`, `high`: the row is seen.
TIERKV_DEVICE void cap_scores(const Launch& launch, bool low, bool high, float (&s)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (launch.softcap > 0.0f) s[i] = launch.softcap * kLog2E * tanhf(s[i] / (launch.softcap * kLog2E));
    if (!(i < 2 ? low : high)) s[i] = -INFINITY;
  }
}

inline constexpr float kRowPatience = 4.0f;  // weights may grow to 2^4 before sums are rescaled

// Scores of two rows and two heads become weights against the running maximum, in powers of two. `low`, `high`: the row is seen.
template <class State>
TIERKV_DEVICE void weigh_rows(const Launch& launch, bool low, bool high, State& state, float (&s)[4]) {
  cap_scores(launch, low, high, s);
  float x0 = fmaxf(s[0], s[2]), x1 = fmaxf(s[1], s[3]);
  if (__any_sync(~0u, x0 > state.top0 + kRowPatience || x1 > state.top1 + kRowPatience)) {
#pragma unroll
    for (int d = 4; d < 32; d *= 2) x0 = fmaxf(x0, __shfl_xor_sync(~0u, x0, d)), x1 = fmaxf(x1, __shfl_xor_sync(~0u, x1, d));
    x0 = fmaxf(x0, state.top0), x1 = fmaxf(x1, state.top1);
    state.shrink(state.top0 == -INFINITY ? 0.0f : power2(state.top0 - x0),
                 state.top1 == -INFINITY ? 0.0f : power2(state.top1 - x1));
    state.top0 = x0, state.top1 = x1;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // A score that is not a number must not vanish: it has to reach the sum.
    s[i] = (i < 2 ? low : high) ? power2(s[i] - (i % 2 ? state.top1 : state.top0)) : 0.0f;
  }
  state.sum0 += s[0] + s[2], state.sum1 += s[1] + s[3];
}

}  // namespace tierkv::cuda
