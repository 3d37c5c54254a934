// klt.cuh — the tensor-core path of klt's keys with mid's values.
//
// Once a pair of blocks: the query turned to each block's position, columns 0..3 to the first and 4..7 to the second (groups of up
// to 4 heads; larger ones take block by block), and its products with the head's rows, which lie in shared memory as operands
// (fragments.h). Then codes meet those products as everywhere else. Every width mix runs: lanes have a table of words and masks.
#pragma once

#include "cuda/fast.cuh"

namespace tierkv::cuda {

inline constexpr uint32_t kKltTile = 8 * 32 * 16;  // 16 components of the basis, as operands
inline constexpr uint32_t kKltBasis = (kMostKltSteps + 1) * kKltTile;
inline constexpr uint32_t kKltQuery = 8 * 64 * 4, kKltTable = kMostKltSteps * 4 * 8;
// A thread block of compute capability 9.0 may have 227 KiB, the barriers included.
inline constexpr uint32_t kKltBytes = 227 * 1024 - 512;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Where a warp's things are.
struct KltWarp {
  uint32_t keys, values, weights, grid, factors, turns;
};

// Cosines and sines of both blocks' positions, halves, two pairs of channels a lane: [block][pair] {cos, sin}. All three digits are
// read whether they are 0 or not (a turn by 0 changes nothing), so that no load waits for another.
TIERKV_DEVICE void load_turns(const float* tables, uint32_t first, uint32_t second, uint32_t to) {
  constexpr uint32_t kPairs = kTileRows / 2;
  const uint32_t lane = threadIdx.x % 32;
  float2 c[2][quant::kTurnDigits], s[2][quant::kTurnDigits];
#pragma unroll
  for (int block = 0; block < 2; ++block) {
#pragma unroll
    for (uint32_t digit = 0; digit < quant::kTurnDigits; ++digit) {
      const uint32_t value = (block == 0 ? first : second) >> (7 * digit) & (quant::kTurnBase - 1);
      const float* row = tables + (digit * quant::kTurnBase + value) * 2 * kPairs + lane * 2;
      c[block][digit] = __ldg(reinterpret_cast<const float2*>(row));
      s[block][digit] = __ldg(reinterpret_cast<const float2*>(row + kPairs));
    }
  }
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    float2 x = c[block][0], y = s[block][0];
#pragma unroll
    for (uint32_t digit = 1; digit < quant::kTurnDigits; ++digit) {
      const float2 a = c[block][digit], b = s[block][digit];
      const float2 both = {x.x * a.x - y.x * b.x, x.y * a.y - y.y * b.y};
      y = {x.x * b.x + y.x * a.x, x.y * b.y + y.y * a.y};
      x = both;
    }
    store2(to + block * 256 + lane * 8, pack_halves(x.x, y.x), pack_halves(x.y, y.y));
  }
}

// The query in the frames of the blocks of this lane's column, as B operands of the product with the rows.
TIERKV_DEVICE void turn_query(uint32_t query, uint32_t turns, bool fold, uint32_t (&q)[8][2]) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int s = 0; s < 8; s += 2) {
    const uint4 v = load4(query + lane * 16 + s / 2 * 512);
    q[s][0] = v.x, q[s][1] = v.y, q[s + 1][0] = v.z, q[s + 1][1] = v.w;
  }
  const uint32_t at = turns + (fold && g >= 4 ? 256 : 0) + t * 8;
#pragma unroll
  for (int s = 0; s < 4; ++s) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint2 pair = load2(at + (16 * s + 8 * j) * 4);  // {cos, sin} of channels 16s + 8j + 2t and the next
      const uint32_t cosine = __byte_perm(pair.x, pair.y, 0x5410), sine = __byte_perm(pair.x, pair.y, 0x7632);
      const uint32_t a = q[s][j], b = q[s + 4][j];
      q[s][j] = times_plus(a, cosine, times(b, sine));
      q[s + 4][j] = times_plus(b, cosine, times(a, sine ^ 0x80008000u));
    }
  }
}

// Products of the query with the rows into `factors`, operands of the scores; returns what every score begins with.
TIERKV_DEVICE float2 load_factors(uint32_t basis, uint32_t steps, const uint32_t (&q)[8][2], uint32_t factors) {
  const uint32_t lane = threadIdx.x % 32, t = lane % 4;
  float c[4], d[4];
  for (uint32_t tile = 0; tile <= steps; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] = d[i] = 0.0f;
#pragma unroll
    for (int s = 0; s < 8; s += 2) {
      const uint4 u = load4(basis + lane * 16 + tile * 4096 + s * 512), v = load4(basis + lane * 16 + tile * 4096 + s * 512 + 512);
      multiply(c, u.x, u.y, u.z, u.w, q[s][0], q[s][1]);
      multiply(d, v.x, v.y, v.z, v.w, q[s + 1][0], q[s + 1][1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] += d[i];
    if (tile < steps)
      store2(factors + lane * 8 + tile * 256, transposed(pack_halves(c[0], c[1])), transposed(pack_halves(c[2], c[3])));
  }
  return {__shfl_sync(~0u, c[0], t) + __shfl_sync(~0u, c[0], 4 + t), __shfl_sync(~0u, c[1], t) + __shfl_sync(~0u, c[1], 4 + t)};
}

template <int V>
TIERKV_DEVICE void attend_klt_views(const Launch& launch, const SegmentDesc& segment, const CodecDesc& codec, WarpCopies& copies,
                                    const KltWarp& own, uint32_t warps, uint32_t basis, uint32_t query, uint32_t table,
                                    WarpState& state) {
  using F = ValueFormat<V>;
  constexpr float kScore = static_cast<float>(1u << 18);
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const quant::SideLayout& key = codec.key;
  const MetaTerms terms = meta_terms(codec.value);
  const float* const tables = key.turns;
  const uint32_t words = key.words[0] + key.words[1] + key.words[2], tile_bytes = words * 64, steps = klt_steps(key);
  const uint32_t key_bytes = words * 512, value_bytes = (codec.value.bytes + 15) / 16 * 16;
  const bool fold = launch.group <= 4;
  const uint32_t stride = fold ? 2 : 1;
  const ViewDesc* views = launch.views + segment.first_view;
  if (warp * stride < segment.views && lane == 0) {
    copy_in(own.keys, views[warp * stride].keys, key_bytes, copies.keys);
    copy_in(own.values, views[warp * stride].values, value_bytes, copies.values);
  }
  for (uint32_t first = warp * stride; first < segment.views; first += stride * warps) {
    const uint32_t both = min(stride, segment.views - first);
    __syncwarp();
    load_turns(tables, views[first].first_position, views[first + both - 1].first_position, own.turns);
    __syncwarp();
    uint32_t q[8][2];
    turn_query(query, own.turns, fold, q);
    const float2 base = load_factors(basis, steps, q, own.factors);
    __syncwarp();
#pragma unroll 1
    for (uint32_t odd = 0; odd < both; ++odd, copies.phase ^= 1) {
      // The next block of this warp; of a last, single one there is no second.
      const uint32_t next = odd + 1 < both ? first + 1 : first + stride * warps;
      const bool more = next < segment.views, mine = !fold || t / 2 == odd;
      // Read now, needed when the slots are free: the addresses must not be waited for then.
      const uint8_t* const next_keys = views[more ? next : first].keys;
      const uint8_t* const next_values = views[more ? next : first].values;
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        float s[4][4];
#pragma unroll
        for (int i = 0; i < 16; ++i) s[i / 4][i % 4] = 0.0f;
        if (half == 0) barrier_wait(copies.keys, copies.phase);
        const uint32_t tiles = own.keys + half * 4 * tile_bytes + g * 8;
#pragma unroll 2
        for (uint32_t k = 0; k < steps; ++k) {
          const uint2 entry = load2(table + (k * 4 + t) * 8), b = load2(own.factors + lane * 8 + k * 256);
#pragma unroll
          for (int tile = 0; tile < 4; ++tile) {
            const uint2 w = load2(tiles + tile * tile_bytes + entry.x);
            multiply(s[tile], w.x & entry.y, w.y & entry.y, w.x >> 8 & entry.y, w.y >> 8 & entry.y, b.x, b.y);
          }
        }
        weigh_half<false>(state, s, kScore, 0, base.x, base.y, mine, static_cast<float>(F::kTop), own.weights);
        __syncwarp();
        if (half == 1 && more && lane == 0) copy_in(own.keys, next_keys, key_bytes, copies.keys);
        if (half == 0) {
          barrier_wait(copies.values, copies.phase);
          load_value_grid(state, terms, own.values + 2048 * V, own.grid);
          __syncwarp();
        }
        add_value_half<V>(state, own.values, own.grid, own.weights, half);
        __syncwarp();
        if (half == 1 && more && lane == 0) copy_in(own.values, next_values, value_bytes, copies.values);
      }
    }
  }
}

TIERKV_DEVICE void attend_klt(const Launch& launch, const SegmentDesc& segment, WarpCopies& copies, uint8_t* memory) {
  const uint32_t warp = threadIdx.x / 32;
  const CodecDesc& codec = launch.codecs[segment.codec];
  const uint32_t words = codec.key.words[0] + codec.key.words[1] + codec.key.words[2];
  const uint32_t steps = klt_steps(codec.key);
  uint8_t* const query = memory;
  uint8_t* const table = query + kKltQuery;
  uint8_t* const basis = table + kKltTable;
  uint8_t* const slots = basis + (steps + 1) * kKltTile;
  __syncthreads();
  const auto* fragments = static_cast<const uint4*>(codec.key_fragments);
  for (uint32_t i = threadIdx.x; i < (steps + 1) * kKltTile / 16; i += kThreads) reinterpret_cast<uint4*>(basis)[i] = fragments[i];
  for (uint32_t i = threadIdx.x; i < kKltTable / 16; i += kThreads) {
    reinterpret_cast<uint4*>(table)[i] = fragments[kKltBasis / 16 + i];
  }
  const float* queries = launch.queries + static_cast<size_t>(segment.first_row) * kTileRows;
  const float scale = launch.scale * kLog2E;
  for (uint32_t i = threadIdx.x; i < 512; i += kThreads) {
    const uint32_t s = i / 64, lane = i / 2 % 32, j = i % 2, column = lane / 4, c = 16 * s + 2 * (lane % 4) + 8 * j;
    const uint32_t head = launch.group <= 4 ? column % 4 : column;
    const bool used = head < launch.group;
    reinterpret_cast<uint32_t*>(query)[(s / 2 * 32 + lane) * 4 + s % 2 * 2 + j] =
        used ? pack_halves(queries[head * kTileRows + c] * scale, queries[head * kTileRows + c + 1] * scale) : 0u;
  }
  fence_copies();
  __syncthreads();

  // As many warps as have room, in fours: every scheduler of a multiprocessor gets as many.
  const uint32_t key_slot = words * 512;
  const uint32_t own_bytes = (kWeightBytes + kGridBytes + steps * 256 + key_slot + codec.value.bytes + 15 + 127) / 128 * 128;
  const uint32_t room = (kKltBytes - kKltQuery - kKltTable - (steps + 1) * kKltTile) / own_bytes / 4 * 4;
  const uint32_t warps = min(room, kThreads / 32);
  WarpState state;
  if (warp < warps) {
    KltWarp own;
    own.weights = shared_address(slots + warp * own_bytes);
    own.grid = own.weights + kWeightBytes;
    own.turns = own.weights;  // which are written after turns were read
    own.factors = own.grid + kGridBytes;
    own.keys = own.factors + steps * 256;
    own.values = own.keys + key_slot;
    const uint32_t b = shared_address(basis), q = shared_address(query), m = shared_address(table);
    if (codec.value.bits == 2) attend_klt_views<2>(launch, segment, codec, copies, own, warps, b, q, m, state);
    else if (codec.value.bits == 3) attend_klt_views<3>(launch, segment, codec, copies, own, warps, b, q, m, state);
    else attend_klt_views<4>(launch, segment, codec, copies, own, warps, b, q, m, state);
  }
  const float up = codec.value.bits == 4 ? 4.0f : 6.0f;
  end_segment(launch, segment, state, warps, up, launch.group <= 4, codec.value.hadamard, memory);
}

#endif

}  // namespace tierkv::cuda
