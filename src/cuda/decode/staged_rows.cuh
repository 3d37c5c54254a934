// staged_rows.cuh — the staged path's shared memory (staged.cuh), and how 16 rows of a block come into it as halves.
#pragma once

#include "cuda/decode/halves.cuh"
#include "cuda/launch/desc.h"
#include "cuda/launch/tile_map.h"
#include "cuda/simt/warp.cuh"

namespace tierkv::cuda {

inline constexpr uint32_t kStagedWarps = 4, kStagedThreads = kStagedWarps * 32;

// For heads of up to 16·T channels.
template <int T>
struct StagedShared {
  static constexpr uint32_t kRow = 16 * T + 8;     // halves of a token, padded against bank conflicts
  static constexpr uint32_t kFloats = 16 * T + 4;  // and floats of a head
  static constexpr uint32_t kChannel = 24;         // halves of a channel: 16 tokens, padded
  static constexpr uint32_t kWarp = 16 * T * kChannel > 16 * kRow ? 16 * T* kChannel : 16 * kRow;
  float4 channels[16 * T];   // of the view at hand: factor and mean, scale and offset
  float signs[16 * T];       // of the frame, and its norm
  __half query[2][8][kRow];  // in the terms of the view at hand: halves, and what they leave
  float base[8], sums[8];    // what every score begins with; sums of the query
  __half levels[2][quant::kMostLevels];
  alignas(16) uint8_t codec[sizeof(CodecDesc)];  // of the view at hand
  union {
    __half staged[kStagedWarps][kWarp];  // keys [token][channel], then values [channel][token], or as keys where they are plain
    struct {
      float values[kStagedWarps][8][kFloats], tops[kStagedWarps][8], totals[kStagedWarps][8];
    } end;
  };
};

template <int T>
TIERKV_DEVICE StagedShared<T>& staged_shared() {
  return *reinterpret_cast<StagedShared<T>*>(dynamic_shared());
}

TIERKV_DEVICE uint4 four_words(uint2 a, uint2 b) { return {a.x, a.y, b.x, b.y}; }

// What a code's half has to be multiplied by.
TIERKV_DEVICE float code_unit(const quant::SideLayout& side) {
  return side.kind == quant::LayoutKind::packed && !side.has_levels ? 16777216.0f : 1.0f;
}

// Four codes, a byte each, as halves: codes 0 and 2, 1 and 3.
TIERKV_DEVICE uint2 code_pairs(uint32_t codes) { return {codes & 0x00FF00FFu, codes >> 8 & 0x00FF00FFu}; }
TIERKV_DEVICE uint2 level_pairs(const __half* levels, uint32_t codes) {
  return {level_pair(levels, codes, codes >> 16), level_pair(levels, codes >> 8, codes >> 24)};
}

// Where one lane's 16 codes come from and go to: of keys 16 channels of its token, of values 16 tokens of its channel.
template <int T>
struct StagedItem {
  bool keys;
  uint32_t tile;  // that all of a warp have: of tokens for keys, and the step of values
  TIERKV_DEVICE uint32_t other(int i) const {
    return 2 * i + threadIdx.x % 32 / 16;
  }  // of the lane: a step of keys, a tile of values
  TIERKV_DEVICE uint32_t from(const quant::LayoutPlane& plane, int i, uint32_t steps) const {
    const uint32_t own = min(other(i), steps - 1);
    return sixteen_at(plane, keys ? tile : own, keys ? own : tile, threadIdx.x % 16);
  }
  TIERKV_DEVICE uint4* to(__half* out, int i) const {
    const uint32_t row = keys ? staged_place(threadIdx.x % 16) : 16 * other(i) + threadIdx.x % 16;
    return reinterpret_cast<uint4*>(out + (keys ? row * StagedShared<T>::kRow + 16 * other(i) : row * StagedShared<T>::kChannel));
  }
};

// One plane of 4 bits: most warm tiers.
template <int T>
TIERKV_DEVICE void stage_nibbles(const quant::SideLayout& side, const uint8_t* bytes, const StagedItem<T>& item, __half* out) {
  const uint32_t steps = side.head_dim / 16;
  uint32_t words[T / 2][2];
#pragma unroll
  for (int i = 0; i < T / 2; ++i) {
    const uint8_t* const at = bytes + item.from(side.planes[0], i, steps);
    words[i][0] = load_word(at), words[i][1] = load_word(at + 64);
  }
#pragma unroll
  for (int i = 0; i < T / 2; ++i) {
    if (item.other(i) >= steps) continue;
    uint4* const to = item.to(out, i);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      constexpr uint32_t kMask = 0x000F000Fu;
      const uint32_t w = words[i][k];
      to[k] = {w & kMask, w >> 8 & kMask, w >> 4 & kMask, w >> 12 & kMask};
    }
  }
}

// Any planes, any levels.
template <int T>
TIERKV_DEVICE void stage_codes(const quant::SideLayout& side, const uint8_t* bytes, const StagedItem<T>& item, const __half* levels,
                               __half* out) {
  const uint32_t steps = side.head_dim / 16;
  uint32_t codes[T / 2][4] = {};
#pragma unroll 1
  for (uint32_t p = 0; p < quant::kMostPlanes && side.planes[p].bits != 0; ++p) {
    const quant::LayoutPlane plane = side.planes[p];
    const uint8_t* at[T / 2];
    uint32_t words[T / 2][4];
#pragma unroll
    for (int i = 0; i < T / 2; ++i) {
      at[i] = bytes + item.from(plane, i, steps);
      words[i][0] = load_word(at[i]);
    }
#pragma unroll
    for (int k = 1; k < 4; ++k) {
      if (2 * k >= plane.bits) continue;
#pragma unroll
      for (int i = 0; i < T / 2; ++i) words[i][k] = load_word(at[i] + 64 * k);
    }
#pragma unroll
    for (int i = 0; i < T / 2; ++i) add_sixteen(plane, words[i], item.keys ? min(item.other(i), steps - 1) : item.tile, codes[i]);
  }
#pragma unroll
  for (int i = 0; i < T / 2; ++i) {
    if (item.other(i) >= steps) continue;
    uint2 halves[4];
    if (levels) {
#pragma unroll
      for (int k = 0; k < 4; ++k) halves[k] = level_pairs(levels, codes[i][k]);
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) halves[k] = code_pairs(codes[i][k]);
    }
    uint4* const to = item.to(out, i);
    to[0] = four_words(halves[0], halves[1]), to[1] = four_words(halves[2], halves[3]);
  }
}

// 16 rows of 16-bit floats, [token][channel]; those that are not seen are zeros, whatever is there.
template <int T>
TIERKV_DEVICE void stage_plain(const quant::SideLayout& side, const uint8_t* bytes, uint32_t first, uint32_t seen, __half* out) {
  const uint32_t lane = threadIdx.x % 32, each = side.head_dim / 8;  // of 16 bytes in a row
  uint4 x[T];
#pragma unroll
  for (int i = 0; i < T; ++i) {
    const uint32_t n = i * 32 + lane, row = n / each;
    x[i] = {0, 0, 0, 0};
    if (row < 16 && (seen >> row & 1u) != 0)
      x[i] = __ldg(reinterpret_cast<const uint4*>(bytes + 2 * first * side.head_dim + 16 * n));
  }
#pragma unroll
  for (int i = 0; i < T; ++i) {
    const uint32_t n = i * 32 + lane, row = n / each, c = n % each * 8;
    if (row >= 16) continue;
    if (side.bf16) x[i] = four_words(from_bf16({x[i].x, x[i].y}), from_bf16({x[i].z, x[i].w}));
    *reinterpret_cast<uint4*>(out + staged_place(row) * StagedShared<T>::kRow + c) = x[i];
  }
}

// One side of 16 rows into shared memory: one copy of the code for both.
template <int T>
__device__ __noinline__ void stage_side(const uint8_t* bytes, uint32_t first, uint32_t seen, bool keys) {
  StagedShared<T>& all = staged_shared<T>();
  const CodecDesc& codec = *reinterpret_cast<const CodecDesc*>(all.codec);
  const quant::SideLayout& side = keys ? codec.key : codec.value;
  __half* const out = all.staged[threadIdx.x / 32];
  const StagedItem<T> item{keys, first / 16};
  if (side.kind == quant::LayoutKind::rows16) stage_plain<T>(side, bytes, first, seen, out);
  else if (side.planes[0].bits == 4 && side.planes[1].bits == 0 && !side.has_levels) stage_nibbles<T>(side, bytes, item, out);
  else stage_codes<T>(side, bytes, item, side.has_levels ? all.levels[keys ? 0 : 1] : nullptr, out);
}

}  // namespace tierkv::cuda
