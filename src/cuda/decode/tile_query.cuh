// tile_query.cuh — the query in the terms of one view's codes, for the general path (tiles.cuh): a warp's work, done again where
// the view changes.
//
// A warp holds [channels][8 heads] as results of products: lane (g, t) has channels 16j + tile_position(g) and two on, heads 2t and
// 2t+1, in x[j]. From there it goes into the warp's shared memory as operands of the scores, each number as two halves.
#pragma once

#include "cuda/decode/common.cuh"
#include "cuda/decode/halves.cuh"
#include "cuda/launch/better.h"
#include "cuda/launch/tile_map.h"
#include "cuda/simt/warp.cuh"

namespace tierkv::cuda {

// Shared memory of the general path, for heads of up to 16·T channels.
template <int T>
struct TileShared {
  static constexpr uint32_t kWarps = T > 8 ? 8 : kThreads / 32;
  static constexpr uint32_t kRow = 16 * T + 8;  // floats of a head, padded against bank conflicts
  struct Warp {
    uint4 query[T * 32];                   // operands of the scores: high halves of slots 2t.. and 2t+8.., then what they leave
    uint4 turned[T * 32];                  // klt: the turned query in the same way, operands of the product with the rows
    float2 entries[T][32];                 // scales and offsets by group: of the keys of 16 rows, then of their values
    float sums[T][8];                      // of the query over each group of channels
    float4 channels[16 * T];               // packed keys: factor and mean of a channel; its scale and offset where it has its own
    __half levels[2][quant::kMostLevels];  // of keys and of values, where codes are indices
    alignas(16) uint8_t codec[sizeof(CodecDesc)];  // of the view at hand: its fields are read all the time
  };
  float rows[16 * T * 8];  // the query [channel][head], scaled, in powers of two
  float signs[16 * T];     // of the frame, and its norm
  union {
    Warp warps[kWarps];
    struct {
      float values[kWarps][8][kRow], tops[kWarps][8], totals[kWarps][8];
      float result[16 * T * 8], top[8], sum[8];
    } end;
  };
};

// Into the Hadamard frame, or out of it. Which bit of a channel is which bit of (j, g, i) does not matter to the transform.
template <int T>
TIERKV_DEVICE void transform(float (&x)[T][4], const float* signs, uint32_t dim, bool forward) {
  const uint32_t lane = threadIdx.x % 32, at = tile_position(lane / 4), run = dim & (~dim + 1u);
#pragma unroll
  for (int j = 0; j < T; ++j) {
    const float low = forward ? signs[16 * j + at] : 1.0f, high = forward ? signs[16 * j + at + 2] : 1.0f;
    x[j][0] *= low, x[j][1] *= low, x[j][2] *= high, x[j][3] *= high;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float a = x[j][i], b = x[j][i + 2];
      x[j][i] = a + b, x[j][i + 2] = a - b;
    }
#pragma unroll
    for (uint32_t d = 4; d < 32; d *= 2) {
      const float own = lane & d ? -1.0f : 1.0f;
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j][i] = fmaf(x[j][i], own, __shfl_xor_sync(~0u, x[j][i], d));
    }
  }
#pragma unroll
  for (int half = 1; half < T; half *= 2) {
    if (16 * half >= run) continue;
#pragma unroll
    for (int j = 0; j < T; ++j) {
      if (j & half) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float a = x[j][i], b = x[j + half][i];
        x[j][i] = a + b, x[j + half][i] = a - b;
      }
    }
  }
#pragma unroll
  for (int j = 0; j < T; ++j) {
    const float low = forward ? 1.0f : signs[16 * j + at], high = forward ? 1.0f : signs[16 * j + at + 2];
    x[j][0] *= low, x[j][1] *= low, x[j][2] *= high, x[j][3] *= high;
  }
}

template <int T>
TIERKV_DEVICE void store_query(const float (&x)[T][4], uint32_t steps, typename TileShared<T>::Warp& own) {
#pragma unroll
  for (int j = 0; j < T; ++j) {
    if (j >= steps) continue;
    const uint32_t a = pack_halves(x[j][0], x[j][1]), b = pack_halves(x[j][2], x[j][3]);
    const float2 c = halves_of(a), d = halves_of(b);
    own.query[j * 32 + threadIdx.x % 32] = {transposed(a), transposed(b), transposed(pack_halves(x[j][0] - c.x, x[j][1] - c.y)),
                                            transposed(pack_halves(x[j][2] - d.x, x[j][3] - d.y))};
  }
}

// What packed keys say of their channels, once a view and a group of tokens: few instructions, since they are fetched every time.
template <int T>
TIERKV_DEVICE void load_channels(const quant::SideLayout& key, const uint8_t* bytes, uint32_t token_group,
                                 typename TileShared<T>::Warp& own) {
  const float middle = key.has_levels ? 0.0f : static_cast<float>(code_middle(key.bits));
#pragma unroll 4
  for (uint32_t c = threadIdx.x % 32; c < key.head_dim; c += 32) {
    const ChannelTerms terms = channel_terms(key, bytes, c);
    own.channels[c] = {terms.factor, terms.mean, 1.0f, 0.0f};
  }
#pragma unroll 1
  for (uint32_t c = threadIdx.x % 32; key.by_channel && c < key.head_dim; c += 32) {
    const ScaleOffset grid = meta_entry(key, bytes + key.meta_at, token_group * key.head_dim + c, key.groups * key.head_dim);
    own.channels[c].z = grid.scale, own.channels[c].w = grid.offset + middle * grid.scale;
  }
  __syncwarp();
}

// Of rows of 16-bit floats, and of packed codes for the tokens of one group where scales belong to channels. Returns what every
// score begins with.
template <int T>
TIERKV_DEVICE float2 channel_query(const quant::SideLayout& key, const uint8_t* bytes, uint32_t token_group,
                                   const TileShared<T>& all, typename TileShared<T>::Warp& own, float (&x)[T][4]) {
  const uint32_t lane = threadIdx.x % 32, at = tile_position(lane / 4), t = lane % 4, dim = key.head_dim;
  const bool packed = key.kind == quant::LayoutKind::packed, even = key.even != 0;
  if (packed) load_channels<T>(key, bytes, token_group, own);
#pragma unroll
  for (int j = 0; j < T; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t c = 16 * j + at + 2 * r;
      float2 q = {0.0f, 0.0f};
      if (16 * j < dim) q = *reinterpret_cast<const float2*>(all.rows + c * 8 + 2 * t);
      if (even) q.x *= own.channels[c].x, q.y *= own.channels[c].x;
      x[j][2 * r] = q.x, x[j][2 * r + 1] = q.y;
    }
  }
  if (key.hadamard) transform<T>(x, all.signs, dim, true);
  if (!packed) return {0.0f, 0.0f};
  const uint32_t each = key.groups == 1 ? dim / 16 : key.group / 16;  // tiles of a group
  uint32_t left = each, group = 0;
  float base0 = 0.0f, base1 = 0.0f, sum0 = 0.0f, sum1 = 0.0f;
#pragma unroll
  for (int j = 0; j < T; ++j) {
    if (16 * j >= dim) continue;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t c = 16 * j + at + 2 * r;
      const float4 own_terms = own.channels[c];
      // Means lie in the frame of the codes, even's outside of it.
      float2 q = {x[j][2 * r], x[j][2 * r + 1]};
      if (even) q = *reinterpret_cast<const float2*>(all.rows + c * 8 + 2 * t);
      const float offset = own_terms.y + own_terms.w;
      base0 += offset * q.x, base1 += offset * q.y;
      x[j][2 * r] *= own_terms.z, x[j][2 * r + 1] *= own_terms.z;
      sum0 += x[j][2 * r], sum1 += x[j][2 * r + 1];
    }
    if (--left != 0 && 16 * (j + 1) < dim) continue;
    const float2 sum = over_rows(sum0, sum1);
    if (lane < 4) *reinterpret_cast<float2*>(&own.sums[group][2 * t]) = sum;
    sum0 = sum1 = 0.0f, left = each, ++group;
  }
  return over_rows(base0, base1);
}

// klt: the query turned by -s0 as operands, and its product with the mean: of this lane's columns.
template <int T>
TIERKV_DEVICE float2 turned_query(const quant::SideLayout& key, uint32_t position, const TileShared<T>& all,
                                  typename TileShared<T>::Warp& own) {
  const uint32_t lane = threadIdx.x % 32, t = lane % 4;
  float base[8] = {};
  const auto put = [&](uint32_t c, uint32_t head, float value) {
    __half* const to = reinterpret_cast<__half*>(own.turned) + (c / 16 * 32 + head * 4 + c % 16 / 4) * 8 + c % 4;
    to[0] = __float2half(value);
    to[4] = __float2half(value - __half2float(to[0]));
  };
  for (uint32_t c = lane; c < key.head_dim; c += 32) {
#pragma unroll
    for (uint32_t h = 0; h < 8; ++h) {
      const float q = all.rows[c * 8 + h];
      base[h] += key.mean[c] * q;
      put(c, h, q);
    }
  }
  __syncwarp();
  for (uint32_t p = lane; p < key.pairs; p += 32) {
    const uint32_t a = key.turned[2 * p], b = key.turned[2 * p + 1];
    float cosine, sine;
    turn_of(key, position, p, cosine, sine);
#pragma unroll
    for (uint32_t h = 0; h < 8; ++h) {
      const float x = all.rows[a * 8 + h], y = all.rows[b * 8 + h], u = x * cosine + y * sine, v = y * cosine - x * sine;
      base[h] += key.mean[a] * (u - x) + key.mean[b] * (v - y);
      put(a, h, u), put(b, h, v);
    }
  }
  __syncwarp();
#pragma unroll
  for (uint32_t h = 0; h < 8; ++h) {
    for (uint32_t d = 16; d != 0; d /= 2) base[h] += __shfl_xor_sync(~0u, base[h], d);
  }
  float2 out = {base[0], base[1]};
#pragma unroll
  for (uint32_t i = 1; i < 4; ++i) {
    if (t == i) out = {base[2 * i], base[2 * i + 1]};
  }
  return out;
}

// klt: products of the turned query with the rows. Returns what every score begins with.
template <int T>
TIERKV_DEVICE float2 word_query(const quant::SideLayout& key, uint32_t position, const TileShared<T>& all,
                                typename TileShared<T>::Warp& own, float (&x)[T][4]) {
  const uint32_t lane = threadIdx.x % 32, at = tile_position(lane / 4), t = lane % 4, dim = key.head_dim;
  float2 base = turned_query<T>(key, position, all, own);
  float sum0 = 0.0f, sum1 = 0.0f;
#pragma unroll
  for (int j = 0; j < T; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[j][i] = 0.0f;
    if (16 * j >= key.components) continue;
    const uint32_t low = 16 * j + at;
    for (uint32_t s = 0; s < dim / 16; ++s) {
      uint2 a = {0, 0}, b = {0, 0};
      if (low < key.components) a = *reinterpret_cast<const uint2*>(key.rows + low * dim + 16 * s + 4 * t);
      if (low + 2 < key.components) b = *reinterpret_cast<const uint2*>(key.rows + (low + 2) * dim + 16 * s + 4 * t);
      const uint4 q = own.turned[s * 32 + lane];
      multiply(x[j], a.x, b.x, a.y, b.y, q.x, q.y);
      multiply(x[j], a.x, b.x, a.y, b.y, q.z, q.w);
    }
    sum0 += x[j][0] + x[j][2], sum1 += x[j][1] + x[j][3];
  }
  const float2 sum = over_rows(sum0, sum1);
  return {base.x + 0.5f * sum.x, base.y + 0.5f * sum.y};
}

// What better rows add to scores, [row][head]: where the channels' terms were, which nobody needs by then.
template <int T>
TIERKV_DEVICE float* better_terms(typename TileShared<T>::Warp& own) {
  static_assert(sizeof own.channels >= 32 * 8 * sizeof(float));  // quant::kMostTop rows
  return reinterpret_cast<float*>(own.channels);
}
template <int T>
TIERKV_DEVICE const float* better_terms(const typename TileShared<T>::Warp& own) {
  return reinterpret_cast<const float*>(own.channels);
}

// Products of the better rows of a view's keys with the plain query, klt's with the turned one: eight lanes a quarter of the
// channels.
template <int T>
TIERKV_DEVICE void better_scores(const CodecDesc& codec, const uint8_t* bytes, const TileShared<T>& all,
                                 typename TileShared<T>::Warp& own) {
  const uint32_t lane = threadIdx.x % 32, head = lane % 8, dim = codec.key.head_dim;
  const bool turned = codec.key.kind == quant::LayoutKind::words;
  const uint8_t* const at = bytes + padded_bytes(codec.key.bytes);
  const auto* const halves = reinterpret_cast<const __half*>(own.turned);
  __syncwarp();
#pragma unroll 1
  for (uint32_t b = 0; b < codec.key_better; ++b) {
    float sum = 0.0f;
#pragma unroll 4
    for (uint32_t c = lane / 8; c < dim; c += 4) {
      const __half* const two = halves + (c / 16 * 32 + head * 4 + c % 16 / 4) * 8 + c % 4;  // as turned_query() puts them
      const float q = turned ? __half2float(two[0]) + __half2float(two[4]) : all.rows[c * 8 + head];
      sum = fmaf(q, better_key(at, codec.key_better, b, c), sum);
    }
    sum += __shfl_xor_sync(~0u, sum, 8), sum += __shfl_xor_sync(~0u, sum, 16);
    if (lane < 8) better_terms<T>(own)[b * 8 + head] = sum;
  }
}

}  // namespace tierkv::cuda
