// prompt_rows.cuh — what the kernels for many queries share: scores to weights, states of rows.
//
// A warp has 16 rows of a query tile; lane (g, t) rows g and g + 8 of them, and of every eight columns 2t and 2t + 1.
#pragma once

#include "cuda/decode/common.cuh"
#include "cuda/launch/prompt.h"
#include "cuda/simt/warp.cuh"

namespace tierkv::cuda {

TIERKV_DEVICE bool needs_mask(const PromptLaunch& launch, const QueryTileDesc& tile, const KeyTileDesc& keys) {
  return needs_mask(launch.causal != 0, launch.window, tile, keys);
}

// s·tanh, by two instructions of the special function unit: off by 1e-7 of the cap.
TIERKV_DEVICE float capped(float x, float cap) {
  return cap - 2.0f * cap * __fdividef(1.0f, 1.0f + power2(fminf(x / cap * (2.0f * kLog2E), 126.0f)));
}

// Two rows of a lane: of the softmax, and of the queries.
struct RowPair {
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
  float factor[2];
  uint32_t position[2];
};

TIERKV_DEVICE RowPair row_pair(const PromptLaunch& launch, const QueryTileDesc& tile, const float* factors, uint32_t row) {
  RowPair out;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t r = row + 8 * i, flat = tile.first + min(r, tile.rows - 1);
    out.factor[i] = factors[r];
    out.position[i] = __ldg(launch.query_positions + launch.rows[tile.rows_of].first_position + flat / launch.group);
  }
  return out;
}

inline constexpr float kTilePatience = 8.0f;  // weights may grow to 2^8 before sums are rescaled

// What earlier sums of a lane's two rows have to be multiplied by; the same for all of a warp whether there is anything to do.
struct Shrink {
  bool needed;
  float by[2];
};

// Scores of N columns, products before, become weights. `masked`: columns' positions decide. Sums are of this lane's columns.
template <int N, bool kCapped>
TIERKV_DEVICE Shrink weigh(const PromptLaunch& launch, RowPair& rows, float (&s)[N / 8][4], bool masked,
                           const uint32_t* positions) {
  if (kCapped) {
    const float cap = launch.softcap * kLog2E;
#pragma unroll
    for (int n = 0; n < N / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = capped(s[n][i] * rows.factor[i / 2], cap);
    }
  }
  if (masked) {
    // Of each row the first position that it sees, and how many it sees from there on: dead ones are beyond all.
    uint32_t first[2], count[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t at = rows.position[r];
      first[r] = launch.window != 0 && at >= launch.window ? at - launch.window + 1 : 0;
      count[r] = (launch.causal ? at + 1 : kNowhere) - first[r];
    }
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < N / 8; ++n) {
      const uint2 at = __ldg(reinterpret_cast<const uint2*>(positions + 8 * n + 2 * t));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((i % 2 ? at.y : at.x) - first[i / 2] >= count[i / 2]) s[n][i] = -INFINITY;
      }
    }
  }
  // Several chains each: few warps share a scheduler here, and one chain of 32 would wait for itself.
  float most[2][4];
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float two = fmaxf(s[n][2 * r], s[n][2 * r + 1]);
      most[r][n % 4] = n < 4 ? two : fmaxf(most[r][n % 4], two);
    }
  }
  // A lane's own maxima say whether there is anything to do; those of a row are wanted only then, which is rare.
  float top[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    top[r] = fmaxf(fmaxf(most[r][0], most[r][1]), fmaxf(most[r][2], most[r][3]));
    if (!kCapped) top[r] *= rows.factor[r];
  }
  Shrink shrink{__any_sync(~0u, top[0] > rows.top[0] + kTilePatience || top[1] > rows.top[1] + kTilePatience) != 0, {1.0f, 1.0f}};
  if (shrink.needed) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int d = 1; d < 4; d *= 2) top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], d));
    }
  }
  float base[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (shrink.needed) {
      const float next = fmaxf(rows.top[r], top[r]);
      shrink.by[r] = power2(rows.top[r] - (next == -INFINITY ? 0.0f : next));
      rows.top[r] = next, rows.sum[r] *= shrink.by[r];
    }
    base[r] = rows.top[r] == -INFINITY ? 0.0f : rows.top[r];
  }
  float sum[2][2] = {};
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[n][i] = power2(kCapped ? s[n][i] - base[i / 2] : fmaf(s[n][i], rows.factor[i / 2], -base[i / 2]));
      sum[i / 2][i % 2] += s[n][i];
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.sum[r] += sum[r][0] + sum[r][1];
  return shrink;
}

// The most that a lane's weights of a tile may add up to by an old maximum: halves end at 65,504.
inline constexpr float kMostWeights = 32768.0f;

// Scores of N columns that every row sees become weights by the maxima that rows have: without a look at the scores' own. False:
// weights are too large for that, or a row has no maximum yet. Scores are lost then, sums are as they were.
template <int N, bool kCapped>
TIERKV_DEVICE bool weigh_by_old_top(const PromptLaunch& launch, RowPair& rows, float (&s)[N / 8][4]) {
  const float cap = launch.softcap * kLog2E;
  float sum[2][2] = {};
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float factor = rows.factor[i / 2], top = rows.top[i / 2];
      s[n][i] = power2(kCapped ? capped(s[n][i] * factor, cap) - top : fmaf(s[n][i], factor, -top));
      sum[i / 2][i % 2] += s[n][i];
    }
  }
  const float low = sum[0][0] + sum[0][1], high = sum[1][0] + sum[1][1];
  if (__any_sync(~0u, !(low + high <= kMostWeights))) return false;
  rows.sum[0] += low, rows.sum[1] += high;
  return true;
}

template <int N>
TIERKV_DEVICE void shrink_rows(const Shrink& shrink, float (&out)[N][4]) {
  if (!shrink.needed) return;
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[n][i] *= shrink.by[i / 2];
  }
}

// The state of a warp's rows goes to its slot, or is merged with what is there.
template <int D>
TIERKV_DEVICE void keep_state(const PromptLaunch& launch, const PromptItem& item, const QueryTileDesc& tile, RowPair& rows,
                              uint32_t row, const float (&out)[D / 8][4]) {
  const uint32_t t = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = rows.sum[r];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const uint32_t own = row + 8 * r;
    if (own >= tile.rows) continue;
    const size_t at = static_cast<size_t>(item.slot) * kQueryTile + own;
    float fresh = 1.0f, old = 0.0f, top = rows.top[r];
    if (item.continues) {
      const float before = launch.state_top[at];
      const float both = fmaxf(before, top), base = both == -INFINITY ? 0.0f : both;
      old = power2(before - base), fresh = power2(top - base);
      top = both;
      sum = sum * fresh + launch.state_sum[at] * old;
    }
    __syncwarp(0xFu << (threadIdx.x % 32 / 4 * 4));  // all have read what one writes
    if (t == 0) launch.state_top[at] = top, launch.state_sum[at] = sum;
    float* const to = launch.state_out + at * launch.head_dim;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const uint32_t c = 8 * n + 2 * t;
      if (c >= launch.head_dim) break;
      float2 value{out[n][2 * r] * fresh, out[n][2 * r + 1] * fresh};
      if (item.continues) {
        const float2 before = *reinterpret_cast<const float2*>(to + c);
        value.x += before.x * old, value.y += before.y * old;
      }
      *reinterpret_cast<float2*>(to + c) = value;
    }
  }
}

}  // namespace tierkv::cuda
