// prompt_queries.cuh — a tile of queries into shared memory, and from there as operands.
//
// A thread block has nothing else to do meanwhile: each warp has several rows on their way at a time.
#pragma once

#include <cfloat>

#include "cuda/decode/common.cuh"
#include "cuda/launch/prompt.h"
#include "cuda/simt/warp.cuh"

namespace tierkv::cuda {

// How queries are asked for: one channel after the other, or floats or shorts as many as a lane wants at once, where they lie so.
enum class Loads { single, floats, shorts };

// kEach channels of a query, from element `at` on.
template <Loads kLoads, uint32_t kEach>
TIERKV_DEVICE void load_channels(const PromptRows& rows, int64_t at, float (&x)[kEach]) {
  const auto* const floats = static_cast<const float*>(rows.queries) + at;
  const auto* const shorts = static_cast<const uint16_t*>(rows.queries) + at;
  const bool bf16 = rows.type == 2;
  if constexpr (kLoads == Loads::single) {
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) x[k] = rows.type == 0 ? __ldg(floats + k) : short_value(__ldg(shorts + k), bf16);
  } else if constexpr (kLoads == Loads::floats && kEach == 2) {
    const float2 two = __ldg(reinterpret_cast<const float2*>(floats));
    x[0] = two.x, x[1] = two.y;
  } else if constexpr (kLoads == Loads::floats) {
#pragma unroll
    for (uint32_t k = 0; k < kEach; k += 4) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(floats + k));
      x[k] = four.x, x[k + 1] = four.y, x[k + 2] = four.z, x[k + 3] = four.w;
    }
  } else {
    uint32_t words[kEach / 2];
    if constexpr (kEach == 8) {
      const uint4 four = __ldg(reinterpret_cast<const uint4*>(shorts));
      words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
    } else if constexpr (kEach == 4) {
      const uint2 two = __ldg(reinterpret_cast<const uint2*>(shorts));
      words[0] = two.x, words[1] = two.y;
    } else {
      words[0] = __ldg(reinterpret_cast<const uint32_t*>(shorts));
    }
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) x[k] = short_value(static_cast<uint16_t>(words[k / 2] >> k % 2 * 16), bf16);
  }
}

// By a warp: rows of a tile from `first` on, kRows of them, several on their way at a time.
template <int D, uint32_t kRows, Loads kLoads>
TIERKV_DEVICE void load_rows(const PromptLaunch& launch, const QueryTileDesc& tile, uint8_t* out, float* factors, uint32_t first) {
  constexpr uint32_t kEach = D / 32, kTogether = kLoads == Loads::single ? 1 : 8;
  static_assert(kRows <= 32 && kRows % kTogether == 0);
  const PromptRows& rows = launch.rows[tile.rows_of];
  const uint32_t lane = threadIdx.x % 32, c = lane * kEach;
  // Lane l knows where row l is.
  const uint32_t flat = tile.first + first + lane % kRows, token = flat / launch.group,
                 head = tile.first_head + flat % launch.group;
  const int64_t place = static_cast<int64_t>(token) * rows.token_stride + static_cast<int64_t>(head) * rows.head_stride;
#pragma unroll 1
  for (uint32_t begin = 0; begin < kRows; begin += kTogether) {
    float x[kTogether][kEach] = {};
#pragma unroll
    for (uint32_t i = 0; i < kTogether; ++i) {
      const int64_t at = __shfl_sync(~0u, place, static_cast<int>(begin + i));
      if (first + begin + i < tile.rows && c < launch.head_dim) load_channels<kLoads>(rows, at + c, x[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < kTogether; ++i) {
      const uint32_t r = first + begin + i;
      float own = 0.0f;
#pragma unroll
      for (uint32_t k = 0; k < kEach; ++k) own = fmaxf(own, fabsf(x[i][k]));
      // 2^e by its bits, so far from the ends of the range that whatever it is multiplied by here is a normal number.
      const uint32_t exponent = min(max(__reduce_max_sync(~0u, __float_as_uint(own)) >> 23, 32u), 222u);
      const float down = __uint_as_float((254u - exponent) << 23);
      // Not 0, which times a score that is masked is not a number.
      if (lane == 0) factors[r] = fmaxf(launch.scale * kLog2E * __uint_as_float(exponent << 23), FLT_MIN);
#pragma unroll
      for (uint32_t k = 0; k < kEach; k += 2) {
        *reinterpret_cast<uint32_t*>(out + key_at(r, c + k)) = pack_halves(x[i][k] * down, x[i][k + 1] * down);
      }
    }
  }
}

// The rows of a tile as halves in the swizzled order of keys, [D / 64][kQueryTile][64], each divided by a power of two of its own;
// factors[r] is what a product of row r has to be multiplied by to be a score times log2 e. Rows that are not there are zeros. By
// kWarps warps.
template <int D, uint32_t kWarps>
TIERKV_DEVICE void load_queries(const PromptLaunch& launch, const QueryTileDesc& tile, uint8_t* out, float* factors,
                                uint32_t warp) {
  constexpr uint32_t kRows = kQueryTile / kWarps;
  const PromptRows& rows = launch.rows[tile.rows_of];
  const uint64_t bytes = rows.type == 0 ? 4 : 2, unit = D / 32 * bytes < 16 ? D / 32 * bytes : 16;
  const uint64_t places = reinterpret_cast<uint64_t>(rows.queries) | static_cast<uint64_t>(rows.token_stride) * bytes |
                          static_cast<uint64_t>(rows.head_stride) * bytes;
  const Loads loads = places % unit != 0 ? Loads::single : rows.type == 0 ? Loads::floats : Loads::shorts;
  if (loads == Loads::single) load_rows<D, kRows, Loads::single>(launch, tile, out, factors, warp * kRows);
  else if (loads == Loads::floats) load_rows<D, kRows, Loads::floats>(launch, tile, out, factors, warp * kRows);
  else load_rows<D, kRows, Loads::shorts>(launch, tile, out, factors, warp * kRows);
}

// Address of a lane's row of four matrices of operand A, runs of 128 bytes: 16 runs from `first` on, 16 halves of each from unit
// `unit` on.
TIERKV_DEVICE uint32_t operand_a(uint32_t base, uint32_t first, uint32_t unit) {
  const uint32_t lane = threadIdx.x % 32, run = first + lane % 16;
  return base + run * 128 + ((unit + lane / 16) ^ (run % 8)) * 16;
}

}  // namespace tierkv::cuda
