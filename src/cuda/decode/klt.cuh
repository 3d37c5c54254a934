// klt.cuh — the tensor-core path of klt's keys with mid's values; heads of D channels.
//
// Once a pair of blocks: the query turned to each block's position, columns 0..3 to the first and 4..7 to the second (groups of up
// to 4 heads; larger ones take block by block), and its products with the head's rows, which lie in shared memory as operands
// (fragments.h). Then codes meet those products as everywhere else. Every width mix runs: lanes have a table of words and masks.
//
// Queries of two halves (heads of 64 channels) are turned in floats, and the codes' middle is taken out of just the factors that
// codes meet.
//
// Better rows (better.h), up to four a block: what they add to scores is a product of theirs with the turned query, rows 0..3 of
// the first block and 4..7 of the second, and goes to the lane that has the token's score. Values of theirs are a product of their
// own.
#pragma once

#include "cuda/decode/fast.cuh"
#include "cuda/launch/better.h"

namespace tierkv::cuda {

template <uint32_t D>
inline constexpr uint32_t kKltTile = D / 16 * 32 * 16;  // 16 components of the basis, as operands
inline constexpr uint32_t kKltTurn = 32 * 16;           // cosines and sines of all pairs of channels
inline constexpr uint32_t kKltQuery = 8 * 64 * 4, kKltTable = kMostKltSteps * 4 * 8, kKltByteTable = 2 * kKltTable,
                          kKltKept = 3 * kKltTurn;
// A thread block of compute capability 9.0 may have 227 KiB, the barriers included.
inline constexpr uint32_t kKltBytes = 227 * 1024 - 512;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Where a warp's things are.
struct KltWarp {
  uint32_t keys, values, weights, grid, factors, turns;
  uint32_t terms;  // BetterKeys
  uint32_t now;    // the turn of the next pair of blocks, if they follow; 0: there is no room for it
  uint32_t kept;   // of all warps: KltKept
};

// Turns that a segment keeps in shared memory, one behind the other: what its first position turns by but for the middle digit, a
// block, and the blocks from one pair of a warp to its next.

enum KltKept : uint32_t { kOtherDigits = 0, kOneBlock = kKltTurn, kOnePass = 2 * kKltTurn };

// Positions of one task differ in their middle digit, mostly: what the others turn by is kept for all of a segment.
inline constexpr uint32_t kMiddleDigit = (quant::kTurnBase - 1) << 7;

// One digit's row of the tables, two pairs of channels a lane: {cosines, sines}.
template <uint32_t D>
TIERKV_DEVICE float4 turn_row(const float* tables, uint32_t position, uint32_t digit) {
  constexpr uint32_t kPairs = D / 2;
  const uint32_t value = position >> (7 * digit) & (quant::kTurnBase - 1);
  const float* row = tables + (digit * quant::kTurnBase + value) * 2 * kPairs + part_of_row<D>() * 2;
  const float2 c = __ldg(reinterpret_cast<const float2*>(row)), s = __ldg(reinterpret_cast<const float2*>(row + kPairs));
  return {c.x, c.y, s.x, s.y};
}
// One turn after another.
TIERKV_DEVICE float4 both_turns(float4 a, float4 b) {
  return {a.x * b.x - a.z * b.z, a.y * b.y - a.w * b.w, a.x * b.z + a.z * b.x, a.y * b.w + a.w * b.y};
}

TIERKV_DEVICE float4 load_turn(uint32_t at) {
  const uint4 raw = load4(at + lane_now() * 16);
  return {__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z), __uint_as_float(raw.w)};
}

// The turn of a position. `key` is the position that kOtherDigits is of.
template <uint32_t D>
TIERKV_DEVICE float4 turn_to(const float* tables, uint32_t position, uint32_t kept, uint32_t key) {
  const float4 middle = turn_row<D>(tables, position, 1);
  if (((position ^ key) & ~kMiddleDigit) == 0) return both_turns(middle, load_turn(kept + kOtherDigits));
  return both_turns(middle, both_turns(turn_row<D>(tables, position, 0), turn_row<D>(tables, position, 2)));
}

// The rows of all digits of a position, asked for at once.
template <uint32_t D>
struct TurnRows {
  float4 low, middle, high;
  TIERKV_DEVICE TurnRows(const float* tables, uint32_t position)
      : low(turn_row<D>(tables, position, 0)), middle(turn_row<D>(tables, position, 1)), high(turn_row<D>(tables, position, 2)) {}
  TIERKV_DEVICE float4 others() const { return both_turns(low, high); }
  TIERKV_DEVICE float4 whole() const { return both_turns(middle, others()); }
};
// The turn of a position without what is kept.
template <uint32_t D>
TIERKV_DEVICE float4 whole_turn(const float* tables, uint32_t position) {
  return TurnRows<D>(tables, position).whole();
}

// Where a warp's next pair of blocks would be if it follows the one before: its turn is known then without the tables, which lie
// in far memory.
struct NextTurn {
  uint32_t key;       // kOtherDigits is of this position
  uint32_t blocks;    // from one pair to the next
  uint32_t position;  // that own.now is of
};

// Cosines and sines of both blocks' positions, two pairs of channels a lane: [block][pair] {cos, sin}, halves, or floats for
// queries of two halves.
template <uint32_t D>
TIERKV_DEVICE void store_turns(uint32_t to, float4 x, float4 y) {
  const uint32_t lane = lane_now();
  if (lane >= D / 4) return;
  if constexpr (kTwoHalves<D>) {
    store4f(to + lane * 16, x.x, x.z, x.y, x.w);
    store4f(to + 256 + lane * 16, y.x, y.z, y.y, y.w);
    return;
  }
  store2(to + lane * 8, pack_halves(x.x, x.z), pack_halves(x.y, x.w));
  store2(to + 256 + lane * 8, pack_halves(y.x, y.z), pack_halves(y.y, y.w));
}
template <uint32_t D>
TIERKV_DEVICE void load_turns(const float* tables, uint32_t first, uint32_t second, const KltWarp& own, NextTurn& next) {
  const uint32_t lane = lane_now();
  const bool follows = own.now != 0 && first == next.position;
  const float4 x = follows ? load_turn(own.now) : turn_to<D>(tables, first, own.kept, next.key);
  const float4 y =
      second == first + kTileRows ? both_turns(x, load_turn(own.kept + kOneBlock)) : turn_to<D>(tables, second, own.kept, next.key);
  if (own.now != 0) {
    const float4 z = both_turns(x, load_turn(own.kept + kOnePass));
    store4f(own.now + lane * 16, z.x, z.y, z.z, z.w);
    next.position = first + next.blocks * kTileRows;
  }
  if constexpr (kTwoHalves<D>) return store_turns<D>(own.turns, x, y);
  // store_turns() written out: with a call of it the compiler gives klt_better other registers, and it took 3 % longer.
  if (lane >= D / 4) return;
  store2(own.turns + lane * 8, pack_halves(x.x, x.z), pack_halves(x.y, x.w));
  store2(own.turns + 256 + lane * 8, pack_halves(y.x, y.z), pack_halves(y.y, y.w));
}

// A query turned to a block's position, as B operands of the product with the rows.
template <uint32_t D>
struct TurnedQuery {
  uint32_t of[D / 16][2];
  uint32_t rest[kTwoHalves<D> ? D / 16 : 1][2];  // what halves leave out
};

// Two floats as halves, and what these leave out.
TIERKV_DEVICE uint32_t halves_and_rest(float x, float y, uint32_t& rest) {
  const uint32_t halves = pack_halves(x, y);
  const float2 are = halves_of(halves);
  rest = pack_halves(x - are.x, y - are.y);
  return halves;
}

// The query in the frames of the blocks of this lane's column.
template <uint32_t D>
TIERKV_DEVICE void turn_query(uint32_t query, uint32_t turns, bool fold, TurnedQuery<D>& turned) {
  constexpr uint32_t kFar = D / 32;  // from a pair's first channel to its second, in products
  const uint32_t lane = lane_now(), g = lane / 4, t = lane % 4;
  uint32_t(&q)[D / 16][2] = turned.of;
#pragma unroll
  for (uint32_t s = 0; s < D / 16; s += 2) {
    const uint4 v = load4(query + lane * 16 + s / 2 * 512);
    q[s][0] = v.x, q[s][1] = v.y, q[s + 1][0] = v.z, q[s + 1][1] = v.w;
    if constexpr (kTwoHalves<D>) {
      const uint4 r = load4(query + D * 16 + lane * 16 + s / 2 * 512);
      turned.rest[s][0] = r.x, turned.rest[s][1] = r.y, turned.rest[s + 1][0] = r.z, turned.rest[s + 1][1] = r.w;
    }
  }
  const uint32_t at = turns + (fold && g >= 4 ? 256 : 0) + t * (kTwoHalves<D> ? 16 : 8);
#pragma unroll
  for (uint32_t s = 0; s < kFar; ++s) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if constexpr (kTwoHalves<D>) {
        uint32_t &a = turned.rest[s][j], &b = turned.rest[s + kFar][j];
        const uint4 raw = load4(at + (16 * s + 8 * j) * 8);  // cos and sin of channel 16s + 8j + 2t, and of the next
        const float c0 = __uint_as_float(raw.x), s0 = __uint_as_float(raw.y), c1 = __uint_as_float(raw.z),
                    s1 = __uint_as_float(raw.w);
        const float2 m = halves_of(q[s][j]), n = halves_of(a), v = halves_of(q[s + kFar][j]), w = halves_of(b);
        const float x0 = m.x + n.x, x1 = m.y + n.y, y0 = v.x + w.x, y1 = v.y + w.y;
        q[s][j] = halves_and_rest(fmaf(x0, c0, y0 * s0), fmaf(x1, c1, y1 * s1), a);
        q[s + kFar][j] = halves_and_rest(fmaf(y0, c0, -x0 * s0), fmaf(y1, c1, -x1 * s1), b);
      } else {
        const uint2 pair = load2(at + (16 * s + 8 * j) * 4);  // {cos, sin} of channels 16s + 8j + 2t and the next
        const uint32_t cosine = __byte_perm(pair.x, pair.y, 0x5410), sine = __byte_perm(pair.x, pair.y, 0x7632);
        const uint32_t a = q[s][j], b = q[s + kFar][j];
        q[s][j] = times_plus(a, cosine, times(b, sine));
        q[s + kFar][j] = times_plus(b, cosine, times(a, sine ^ 0x80008000u));
      }
    }
  }
}

// Products of the query with the rows into `factors`, operands of the scores, which are in units of `score`; returns what every
// score begins with. `table`: the step table.
template <uint32_t D>
TIERKV_DEVICE float2 load_factors(uint32_t basis, uint32_t table, uint32_t steps, const TurnedQuery<D>& turned, uint32_t factors,
                                  float score) {
  const uint32_t lane = lane_now(), t = lane % 4;
  const uint32_t(&q)[D / 16][2] = turned.of;
  float c[4], d[4], most[4] = {};
  for (uint32_t tile = 0; tile <= steps; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] = d[i] = 0.0f;
    float e[4] = {}, f[4] = {};
#pragma unroll
    for (uint32_t s = 0; s < D / 16; s += 4) {
      const uint32_t at = basis + lane * 16 + tile * kKltTile<D> + s * 512;
      const uint4 u = load4(at), v = load4(at + 512), x = load4(at + 1024), y = load4(at + 1536);
      multiply(c, u.x, u.y, u.z, u.w, q[s][0], q[s][1]);
      multiply(d, v.x, v.y, v.z, v.w, q[s + 1][0], q[s + 1][1]);
      multiply(e, x.x, x.y, x.z, x.w, q[s + 2][0], q[s + 2][1]);
      multiply(f, y.x, y.y, y.z, y.w, q[s + 3][0], q[s + 3][1]);
      if constexpr (kTwoHalves<D>) {
        multiply(c, u.x, u.y, u.z, u.w, turned.rest[s][0], turned.rest[s][1]);
        multiply(d, v.x, v.y, v.z, v.w, turned.rest[s + 1][0], turned.rest[s + 1][1]);
        multiply(e, x.x, x.y, x.z, x.w, turned.rest[s + 2][0], turned.rest[s + 2][1]);
        multiply(f, y.x, y.y, y.z, y.w, turned.rest[s + 3][0], turned.rest[s + 3][1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] = (c[i] + d[i]) + (e[i] + f[i]);
    if constexpr (kTwoHalves<D>) {
      if (tile == steps) break;
      const uint32_t x = transposed(pack_halves(c[0], c[1])), y = transposed(pack_halves(c[2], c[3]));
      const uint32_t largest = load1(table + (tile * 4 + t) * 8 + 4);  // the mask of codes is the largest of them
      multiply(most, largest, 0, largest, 0, x, y);
      store2(factors + lane * 8 + tile * 256, x, y);
    } else if (tile < steps) {
      store2(factors + lane * 8 + tile * 256, transposed(pack_halves(c[0], c[1])), transposed(pack_halves(c[2], c[3])));
    }
  }
  if constexpr (kTwoHalves<D>) {
    const uint32_t high = 8 + t, low = 12 + t;  // rows 2 and 3: the mean
    return {__shfl_sync(~0u, c[0], high) + __shfl_sync(~0u, c[0], low) - 0.5f * score * most[0],
            __shfl_sync(~0u, c[1], high) + __shfl_sync(~0u, c[1], low) - 0.5f * score * most[1]};
  }
  return {__shfl_sync(~0u, c[0], t) + __shfl_sync(~0u, c[0], 4 + t), __shfl_sync(~0u, c[1], t) + __shfl_sync(~0u, c[1], 4 + t)};
}

// What the better rows of both blocks add to scores, in powers of two: lane (g, t) has row g % 4 of block g / 4, for columns 2t and
// 2t+1. Kept in shared memory: registers are what the loops over codes lack.
template <uint32_t D>
struct BetterKeys {
  uint4 halves[D / 32];
  float scale;
  uint32_t index;  // kNoRow: no such row

  // From global memory, before they are needed.
  TIERKV_DEVICE void load(const uint8_t* first, const uint8_t* second) {
    const uint32_t lane = threadIdx.x % 32, row = lane / 4 % 4;
    const uint8_t* const at = lane < 16 ? first : second;
    scale = better_scale(at, row), index = better_index(at, kMostFastBetter, row);
#pragma unroll
    for (uint32_t i = 0; i < D / 32; ++i)
      halves[i] = __ldg(reinterpret_cast<const uint4*>(at + better_halves(kMostFastBetter) + i * 256 + lane % 16 * 16));
  }

  // Their products with the turned query, to `terms`: [lane] two floats, then [lane] the row's index. Bit b of the result: a score
  // of block b grows by more than weights have room for.
  TIERKV_DEVICE uint32_t meet(const TurnedQuery<D>& turned, bool fold, uint32_t terms) const {
    const uint32_t(&q)[D / 16][2] = turned.of;
    constexpr float kRoom = 2.0f;
    const uint32_t lane = threadIdx.x % 32;
    float c[4] = {}, d[4] = {};
#pragma unroll
    for (uint32_t i = 0; i < D / 32; ++i) {
      multiply(c, halves[i].x, 0, halves[i].y, 0, q[2 * i][0], q[2 * i][1]);
      multiply(d, halves[i].z, 0, halves[i].w, 0, q[2 * i + 1][0], q[2 * i + 1][1]);
    }
    const float x = (c[0] + d[0]) * scale, y = (c[1] + d[1]) * scale;
    store2(terms + lane * 8, __float_as_uint(x), __float_as_uint(y));
    store1(terms + 256 + lane * 4, index);
    const bool own = !fold || lane / 16 == lane % 4 / 2;
    const uint32_t large = __ballot_sync(~0u, own && !(fmaxf(x, y) <= kRoom));
    return (large & 0xFFFFu ? 1u : 0u) | (large >> 16 ? 2u : 0u);
  }
};
inline constexpr uint32_t kBetterTerms = 384;
template <uint32_t D>
inline constexpr uint32_t kBetterLines = D / 16 + 1;  // of far memory that a block's have

// To weights that are in shared memory, where they have room: those of half `half` of block `odd`.
TIERKV_DEVICE void raise_weights(uint32_t terms, uint32_t weights, bool fold, uint32_t odd, uint32_t half) {
  const uint32_t lane = threadIdx.x % 32, t = lane % 4, token = load1(terms + 256 + lane * 4);
  if (lane / 16 != odd || token / 64 != half || (fold && t / 2 != odd)) return;
  const float2 by = load2f(terms + lane * 8);
  const uint32_t tile = token % 64 / 16, at = weights + tile * 256 + token % 2 * 128 + token % 16 / 2 * 2;
  const uint32_t low = at + (2 * t + 2 * tile) % 8 * 16, high = at + (2 * t + 1 + 2 * tile) % 8 * 16;
  store_half(low, load_half(low) * power2(by.x));
  store_half(high, load_half(high) * power2(by.y));
}

// To scores, before they are weights, where not: `down` takes them into the scores' units.
TIERKV_DEVICE void raise_scores(uint32_t terms, float (&s)[4][4], uint32_t odd, uint32_t half, float down) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
  for (uint32_t row = 0; row < kMostFastBetter; ++row) {
    const uint32_t from = 16 * odd + 4 * row, token = load1(terms + 256 + from * 4);
    if (token / 64 != half) continue;
    const float2 more = load2f(terms + (from + lane % 4) * 8);
    const bool own = token % 16 / 2 == lane / 4;
    const uint32_t place = token % 64 / 16 * 2 + token % 2;
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      if (place == i && own) s[i / 2][i % 2 * 2] += more.x * down, s[i / 2][i % 2 * 2 + 1] += more.y * down;
    }
  }
}

// Weights of better rows 2t and 2t+1 of values for head g, times the rows' scales: an operand of lane (g, t), nothing for t >= 2.
// `rows`: scales and indices in shared memory; weights lie as weigh_half() stores them.
TIERKV_DEVICE uint32_t better_operand(uint32_t rows, uint32_t weights, float down, uint32_t half) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const float2 scale = load2f(rows + t % 2 * 8);
  const uint2 token = load2(rows + 4 * kMostFastBetter + t % 2 * 8);
  const auto weight = [&](uint32_t at, float by) {
    if (at / 64 != half || t >= 2) return 0.0f;
    const uint32_t tile = at % 64 / 16;
    return load_half(weights + tile * 256 + at % 2 * 128 + (g + 2 * tile) % 8 * 16 + at % 16 / 2 * 2) * by * down;
  };
  return pack_halves(weight(token.x, scale.x), weight(token.y, scale.y));
}

template <int V, uint32_t D, bool kBetter>
TIERKV_DEVICE void attend_klt_views(const Launch& launch, const SegmentDesc& segment, const CodecDesc& codec, WarpCopies& copies,
                                    const KltWarp& own, uint32_t warps, uint32_t basis, uint32_t query, uint32_t table,
                                    WarpState<D>& state) {
  using F = ValueFormat<V, D>;
  constexpr float kScore = static_cast<float>(1u << 18);
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const quant::SideLayout& key = codec.key;
  const MetaTerms terms = meta_terms(codec.value);
  const float* const tables = key.turns;
  const uint32_t words = key.words[0] + key.words[1] + key.words[2], tile_bytes = words * 64, steps = klt_steps(key);
  const uint32_t grouped = key.words[0] / 4 * 4;  // steps whose words are taken four at a time
  const uint32_t key_bytes = words * 512, base_bytes = padded_bytes(codec.value.bytes);
  const uint32_t value_bytes = base_bytes + (kBetter ? better_bytes(kMostFastBetter, D) : 0);
  const bool fold = launch.group <= 4;
  const uint32_t stride = fold ? 2 : 1;
  const ViewDesc* views = launch.views + segment.first_view;
  NextTurn turn{views[0].first_position, stride * warps, UINT32_MAX};
  // Positions are read a pass ahead, so that nothing waits for them.
  const auto positions = [&](uint32_t at) {
    const uint32_t last = segment.views - 1;
    return uint2{views[min(at, last)].first_position, views[min(at + stride - 1, last)].first_position};
  };
  uint2 ahead = positions(warp * stride);
  for (uint32_t first = warp * stride; first < segment.views; first += stride * warps) {
    const uint32_t both = min(stride, segment.views - first);
    const uint2 here = ahead;
    ahead = positions(first + stride * warps);
    __syncwarp();
    BetterKeys<D> better;
    if constexpr (kBetter) better.load(views[first].keys + key_bytes, views[first + both - 1].keys + key_bytes);
    load_turns<D>(tables, here.x, here.y, own, turn);
    __syncwarp();
    TurnedQuery<D> q;
    turn_query<D>(query, own.turns, fold, q);
    uint32_t large = 0;
    if constexpr (kBetter) large = better.meet(q, fold, own.terms);
    const float2 base = load_factors<D>(basis, table, steps, q, own.factors, kScore);
    if constexpr (kBetter) {
      const uint32_t next = first + stride * warps + (lane < 16 ? 0 : stride - 1);
      if (next < segment.views && lane % 16 < kBetterLines<D>) prefetch_line(views[next].keys + key_bytes + lane % 16 * 128);
    }
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
        // Four words of 2 bits at a time, one a lane of a quad, as far as there are four.
        for (uint32_t k = 0; k < grouped; k += 4) {
          uint2 b[4];
#pragma unroll
          for (int f = 0; f < 4; ++f) b[f] = load2(own.factors + lane * 8 + (k + f) * 256);
          const uint32_t at = tiles + load1(table + (k * 4 + t) * 8);
#pragma unroll
          for (int tile = 0; tile < 4; ++tile) {
            const uint2 w = load2(at + tile * tile_bytes);
#pragma unroll
            for (int f = 0; f < 4; ++f) {
              multiply(s[tile], codes<2>(w.x, 0, f), codes<2>(w.y, 0, f), codes<2>(w.x >> 8, 0, f), codes<2>(w.y >> 8, 0, f),
                       b[f].x, b[f].y);
            }
          }
        }
#pragma unroll 2
        for (uint32_t k = grouped; k < steps; ++k) {
          const uint2 entry = load2(table + (k * 4 + t) * 8), b = load2(own.factors + lane * 8 + k * 256);
#pragma unroll
          for (int tile = 0; tile < 4; ++tile) {
            const uint2 w = load2(tiles + tile * tile_bytes + entry.x);
            multiply(s[tile], w.x & entry.y, w.y & entry.y, w.x >> 8 & entry.y, w.y >> 8 & entry.y, b.x, b.y);
          }
        }
        if constexpr (kBetter) {
          if (large >> odd & 1u) raise_scores(own.terms, s, odd, half, 1.0f / kScore);
        }
        weigh_half<false>(state, s, kScore, 0, base.x, base.y, mine, static_cast<float>(F::kTop), own.weights);
        __syncwarp();
        if constexpr (kBetter) {
          if ((large >> odd & 1u) == 0) raise_weights(own.terms, own.weights, fold, odd, half);
          __syncwarp();
        }
        if (half == 1 && more && lane == 0) copy_in(own.keys, next_keys, key_bytes, copies.keys);
        if (half == 0) {
          barrier_wait(copies.values, copies.phase);
          load_value_grid(state, terms, own.values + 16 * D * V, own.grid);
          __syncwarp();
        }
        if constexpr (kBetter) {
          const uint32_t rows = own.values + base_bytes;
          add_value_half<V, true>(state, own.values, own.grid, own.weights, half, rows + better_halves(kMostFastBetter),
                                  better_operand(rows, own.weights, state.down / kBetterValue, half));
        } else {
          add_value_half<V>(state, own.values, own.grid, own.weights, half);
        }
        __syncwarp();
        if (half == 1 && more && lane == 0) copy_in(own.values, next_values, value_bytes, copies.values);
      }
    }
  }
}

// A barrier for the copies of a segment's tables, and the phase that they complete.
struct TableCopy {
  uint32_t barrier, parity;
};

// The rows and the step table are on their way into shared memory: `once` says when they are there. A warp asks for a tile, thread
// blocks beginning at different ones: many read the same rows at the same time, and each piece of far memory serves one at a time.
template <uint32_t D, bool kWhole>
TIERKV_DEVICE void ask_klt_tables(const FastCodec& codec, const TableCopy& once, uint8_t* table, uint8_t* basis) {
  const uint32_t warp = threadIdx.x / 32, tiles = codec.steps + 1u;
  static_assert(kMostKltSteps + 1 <= kThreads / 32);
  if (threadIdx.x % 32 != 0 || warp >= tiles) return;
  const auto* const rows = static_cast<const uint8_t*>(codec.fragments);
  if (warp == 0) {
    const uint8_t* const entries = rows + (kMostKltSteps + 1) * kKltTile<D> + (kWhole ? kKltTable : 0);
    constexpr uint32_t kEntries = kWhole ? kKltByteTable : kKltTable;
    expect_bytes(once.barrier, tiles * kKltTile<D> + kEntries);
    copy_more(shared_address(table), entries, kEntries, once.barrier);
  }
  const uint32_t tile = (blockIdx.x + warp) % tiles;
  copy_more(shared_address(basis) + tile * kKltTile<D>, rows + tile * kKltTile<D>, kKltTile<D>, once.barrier);
}

// The query as operands of the product with the rows: a word of two channels a thread, which is asked for before anything that
// waits for far memory.
template <uint32_t D>
class KltQuery {
 public:
  TIERKV_DEVICE KltQuery(const Launch& launch, const SegmentDesc& segment) {
    static_assert(D * 4 <= kThreads);
    const uint32_t step = threadIdx.x / 64, lane = threadIdx.x / 2 % 32, j = threadIdx.x % 2, column = lane / 4;
    const uint32_t head = launch.group <= 4 ? column % 4 : column, channel = 16 * step + 2 * (lane % 4) + 8 * j;
    own_ = threadIdx.x < D * 4, to_ = (step / 2 * 32 + lane) * 4 + step % 2 * 2 + j;
    if (own_ && head < launch.group) {
      const float* const from = launch.queries + static_cast<size_t>(segment.first_row + head) * D + channel;
      x_ = __ldg(from), y_ = __ldg(from + 1);
    }
  }
  TIERKV_DEVICE void put(const Launch& launch, uint8_t* query) const {
    const float scale = launch.scale * kLog2E;
    if (!own_) return;
    auto* const words = reinterpret_cast<uint32_t*>(query);
    if constexpr (kTwoHalves<D>) {
      words[to_] = halves_and_rest(x_ * scale, y_ * scale, words[to_ + D * 4]);
    } else {
      words[to_] = pack_halves(x_ * scale, y_ * scale);
    }
  }

 private:
  float x_ = 0.0f, y_ = 0.0f;
  uint32_t to_;
  bool own_;
};

template <uint32_t D, bool kBetter>
TIERKV_DEVICE void attend_klt(const Launch& launch, const SegmentDesc& segment, const FastCodec& facts, const TableCopy& once,
                              WarpCopies& copies, uint8_t* memory) {
  const uint32_t warp = threadIdx.x / 32;
  const CodecDesc& codec = launch.codecs[segment.codec];
  const uint32_t words = codec.key.words[0] + codec.key.words[1] + codec.key.words[2];
  const uint32_t steps = klt_steps(codec.key);
  uint8_t* const query = memory;
  uint8_t* const table = query + kKltQuery;
  uint8_t* const kept = table + kKltTable;
  uint8_t* const basis = kept + kKltKept;
  uint8_t* const slots = basis + (steps + 1) * kKltTile<D>;

  // As many warps as have room, in fours: every scheduler of a multiprocessor gets as many. Weights want whole lines of banks.
  constexpr uint32_t kLines = kWeightBytes + kGridBytes;
  const uint32_t key_slot = words * 512, terms = kBetter ? kBetterTerms : 0;
  const uint32_t value_slot = padded_bytes(codec.value.bytes) + (kBetter ? better_bytes(kMostFastBetter, D) : 0);
  const uint32_t own_bytes = steps * 256 + terms + key_slot + value_slot;
  const uint32_t all = kKltBytes - kKltQuery - kKltTable - kKltKept - (steps + 1) * kKltTile<D>;
  const uint32_t warps = min(all / (kLines + own_bytes) / 4 * 4, kThreads / 32);
  const bool turns_fit = warps * (kLines + own_bytes + kKltTurn) <= all;
  KltWarp own;
  own.weights = shared_address(slots + warp * kLines);
  own.grid = own.weights + kWeightBytes;
  own.kept = shared_address(kept);
  own.turns = own.weights;  // which are written after turns were read
  own.factors = shared_address(slots + warps * kLines + warp * own_bytes);
  own.terms = own.factors + steps * 256;
  own.keys = own.terms + terms;
  own.values = own.keys + key_slot;
  own.now = turns_fit ? shared_address(slots + warps * (kLines + own_bytes) + warp * kKltTurn) : 0;

  const uint32_t stride = launch.group <= 4 ? 2 : 1;
  ask_klt_tables<D, false>(facts, once, table, basis);
  const KltQuery<D> own_query(launch, segment);
  // Turns that are kept: a warp has one.
  if (warp < 3) {
    const uint32_t position = warp == 0   ? launch.views[segment.first_view].first_position
                              : warp == 1 ? kTileRows
                                          : stride * warps * kTileRows;
    float4 turn = turn_row<D>(facts.turns, position, warp == 0 ? 0 : 1);
    if (warp == 0) turn = both_turns(turn, turn_row<D>(facts.turns, position, 2));
    reinterpret_cast<float4*>(kept)[threadIdx.x] = turn;
  }
  own_query.put(launch, query);
  // All multiprocessors ask for their first blocks at once, and it takes microseconds until they are there: the tables come before.
  if (const uint32_t at = warp * stride; warp < warps && at < segment.views && threadIdx.x % 32 == 0) {
    const ViewDesc* const view = launch.views + segment.first_view + at;
    copy_in(own.keys, view->keys, key_slot, copies.keys);
    copy_in(own.values, view->values, value_slot, copies.values);
  }
  __syncthreads();
  barrier_wait(once.barrier, once.parity);
  WarpState<D> state;
  if (warp < warps) {
    const uint32_t b = shared_address(basis), q = shared_address(query), m = shared_address(table);
    if (codec.value.bits == 2) attend_klt_views<2, D, kBetter>(launch, segment, codec, copies, own, warps, b, q, m, state);
    else if (codec.value.bits == 3) attend_klt_views<3, D, kBetter>(launch, segment, codec, copies, own, warps, b, q, m, state);
    else attend_klt_views<4, D, kBetter>(launch, segment, codec, copies, own, warps, b, q, m, state);
  }
  const float up = codec.value.bits == 4 ? 4.0f : 6.0f;
  end_segment(launch, segment, state, warps, up, launch.group <= 4, codec.value.hadamard, memory);
}

#endif

}  // namespace tierkv::cuda
