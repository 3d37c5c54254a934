// klt_whole.cuh — klt's keys and mid's values of 2 bits as whole numbers: products of bytes, groups of up to 4 heads of D channels.
//
// What a pair of blocks begins with is klt.cuh's. Then, as whole.cuh has it, one AND takes four codes out of a word, and a product
// takes 32 of them.
//
// Keys:    factors, the products of the turned query with the rows, are in 16 bits of the largest that they could be: the query's
//          norm times the largest row's. Columns 0..3 of a product have their high bytes, 4..7 the low ones, both signed. Codes are
//          centred by a product of their own, with the largest codes: twice the middle, of just the factors that codes meet.
// Scores:  lanes 0 and 1 of a quad put those of even tiles together, lanes 2 and 3 those of odd ones.
// Values:  whole.cuh's.
#pragma once

#include "cuda/decode/klt.cuh"
#include "cuda/decode/whole.cuh"

namespace tierkv::cuda {

struct KltWholeShape {
  static constexpr uint32_t kWeights = kTileRows * 4 * 2, kGrid = 2 * kTileRows * 4;  // of 4 heads; scales and offsets as floats
  static constexpr uint32_t kLines = kWeights + kGrid;
  static constexpr uint32_t kAhead = 32;  // of a warp, where klt.cuh keeps kOnePass: positions of its next pair of blocks
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Units of the heads' factors: a warp has a head. Asked for and put as the query itself is.
template <uint32_t D>
class KltUnits {
 public:
  TIERKV_DEVICE KltUnits(const Launch& launch, const SegmentDesc& segment, const FastCodec& codec) {
    constexpr uint32_t kLargest = ((kMostKltSteps + 1) * kKltTile<D> + kKltTable + kKltByteTable) / sizeof(float);
    const uint32_t lane = threadIdx.x % 32, head = threadIdx.x / 32;
    if (head >= 4) return;
    largest_ = __ldg(static_cast<const float*>(codec.fragments) + kLargest);
    if (head >= launch.group) return;
    const float* const from = launch.queries + static_cast<size_t>(segment.first_row + head) * D + lane;
#pragma unroll
    for (uint32_t i = 0; i < D / 32; ++i) x_[i] = __ldg(from + 32 * i);
  }
  TIERKV_DEVICE void put(const Launch& launch, float* units) const {
    const uint32_t head = threadIdx.x / 32;
    if (head >= 4) return;
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < D / 32; ++i) sum = fmaf(x_[i], x_[i], sum);
    const float most = fmaxf(sqrtf(sum_over_warp(sum)) * fabsf(launch.scale) * kLog2E * largest_, 1e-30f);
    // Scores are twice the sum, and rows carry 2^6.
    if (threadIdx.x % 32 == 0) units[head] = most / kWholeMost / 128.0f, units[4 + head] = kWholeMost / most;
  }

 private:
  float x_[D / 32] = {}, largest_ = 0.0f;
};

// Where lane (head, t) of a product's operand is: [pair of steps][high and low of head and t][step]. Banks of the second block are
// the other half.
TIERKV_DEVICE uint32_t factor_at(uint32_t factors, uint32_t pairs, uint32_t block, uint32_t step, uint32_t low, uint32_t lane) {
  return factors + (block * pairs + step / 2) * 256 + (low ^ block) * 128 + lane % 16 * 8 + step % 2 * 4;
}

// Products of the query with the rows as bytes; returns what every score begins with. `down`: the inverse units of columns 2t and
// 2t+1; `up`: the step table, whose fourth words are the rows' factors.
template <uint32_t D>
TIERKV_DEVICE float2 load_byte_factors(uint32_t basis, uint32_t table, uint32_t steps, const TurnedQuery<D>& turned, float2 down,
                                       uint32_t factors) {
  const uint32_t(&q)[D / 16][2] = turned.of;
  const uint32_t lane = lane_now(), g = lane / 4, t = lane % 4, pairs = (steps + 1) / 2;
  constexpr float kMagic = kWholeMagic + 128.0f;
  float c[4], d[4];
  for (uint32_t tile = 0; tile <= steps; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] = d[i] = 0.0f;
#pragma unroll
    for (uint32_t s = 0; s < D / 16; s += 2) {
      const uint32_t at = basis + lane * 16 + tile * kKltTile<D> + s * 512;
      const uint4 u = load4(at), v = load4(at + 512);
      multiply(c, u.x, u.y, u.z, u.w, q[s][0], q[s][1]);
      multiply(d, v.x, v.y, v.z, v.w, q[s + 1][0], q[s + 1][1]);
      if constexpr (kTwoHalves<D>) {
        multiply(c, u.x, u.y, u.z, u.w, turned.rest[s][0], turned.rest[s][1]);
        multiply(d, v.x, v.y, v.z, v.w, turned.rest[s + 1][0], turned.rest[s + 1][1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] += d[i];
    if (tile == steps) break;
    const float up = load1f(table + (tile * 4 + g / 2) * 16 + 12), x = down.x * up, y = down.y * up;
    const uint32_t a = __float_as_uint(fmaf(c[0], x, kMagic)), b = __float_as_uint(fmaf(c[1], y, kMagic));
    const uint32_t e = __float_as_uint(fmaf(c[2], x, kMagic)), f = __float_as_uint(fmaf(c[3], y, kMagic));
    const uint32_t even = transposed(__byte_perm(a, b, 0x5410)), odd = transposed(__byte_perm(e, f, 0x5410));
    store1(factor_at(factors, pairs, g / 4, tile, 0, lane), __byte_perm(even, odd, 0x7351));
    store1(factor_at(factors, pairs, g / 4, tile, 1, lane), __byte_perm(even, odd, 0x6240) ^ 0x80808080u);
  }
  const uint32_t high = 8 + t, low = 12 + t;  // rows 2 and 3: the mean
  return {__shfl_sync(~0u, c[0], high) + __shfl_sync(~0u, c[0], low), __shfl_sync(~0u, c[1], high) + __shfl_sync(~0u, c[1], low)};
}

// Sums of codes and factors of all tiles of a block, and of the largest codes.
TIERKV_DEVICE void byte_scores(uint32_t tiles, uint32_t tile_bytes, uint32_t table, uint32_t steps, uint32_t grouped,
                               uint32_t factors, int (&x)[8][4], int (&middle)[4]) {
  const uint32_t t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 32; ++i) x[i / 4][i % 4] = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) middle[i] = 0;
  // Four words of 2 bits at a time, one a lane of a quad, as far as there are four.
  for (uint32_t k = 0; k < grouped; k += 4) {
    constexpr uint32_t kLow = 0x03030303u, kHigh = 0x0C0C0C0Cu;
    const uint2 b = load2(factors + k / 2 * 256), c = load2(factors + k / 2 * 256 + 256);
    multiply_signed(middle, kLow, kLow, kHigh, kHigh, b.x, b.y);
    multiply_signed(middle, kLow, kLow, kHigh, kHigh, c.x, c.y);
    const uint32_t at = tiles + load1(table + (k * 4 + t) * 16);
#pragma unroll
    for (int tile = 0; tile < 8; ++tile) {
      const uint2 w = load2(at + tile * tile_bytes);
      multiply_signed(x[tile], w.x & kLow, w.y & kLow, w.x & kHigh, w.y & kHigh, b.x, b.y);
      const uint32_t u = w.x >> 4, v = w.y >> 4;
      multiply_signed(x[tile], u & kLow, v & kLow, u & kHigh, v & kHigh, c.x, c.y);
    }
  }
#pragma unroll 1
  for (uint32_t k = grouped; k < steps; k += 2) {
    const uint2 b = load2(factors + k / 2 * 256);  // without a second step its factors are zeros
    const uint4 one = load4(table + (k * 4 + t) * 16), two = load4(table + (min(k + 1, kMostKltSteps - 1) * 4 + t) * 16);
    multiply_signed(middle, one.y, one.y, two.y, two.y, b.x, b.y);
#pragma unroll
    for (int tile = 0; tile < 8; ++tile) {
      const uint2 w = load2(tiles + tile * tile_bytes + one.x), v = load2(tiles + tile * tile_bytes + two.x);
      multiply_signed(x[tile], w.x >> one.z & one.y, w.y >> one.z & one.y, v.x >> two.z & two.y, v.y >> two.z & two.y, b.x, b.y);
    }
  }
}

// High and low sums together, less the middle: this lane's tiles are 2i + t / 2, its heads 2t % 4 and the next.
TIERKV_DEVICE void join_scores(const int (&x)[8][4], const int (&middle)[4], float (&s)[4][4]) {
  const bool first = threadIdx.x % 4 < 2;
  const int own = first ? 256 : 1, other = first ? 1 : 256;
  int half[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) half[i] = middle[i] * own + __shfl_xor_sync(~0u, middle[i], 2) * other;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int got = __shfl_xor_sync(~0u, first ? x[2 * i + 1][k] : x[2 * i][k], 2);
      const int sum = (first ? x[2 * i][k] : x[2 * i + 1][k]) * own + got * other;
      s[i][k] = static_cast<float>(2 * sum - half[k % 2]);
    }
  }
}

// As whole_weights(), of join_scores()'s scores. Weights lie as [tile][odd][head][8 tokens], turned so that neither who writes nor
// who reads meets a bank twice.
TIERKV_DEVICE uint32_t weight_slot(uint32_t tile, uint32_t odd, uint32_t head) {
  return tile * 128 + (odd * 4 + head + tile % 2 * 4 + tile / 2 * 2) % 8 * 16;
}
template <uint32_t D>
TIERKV_DEVICE float2 join_weights(WholeState<D>& state, const float (&s)[4][4], float2 scale, float2 base, float most,
                                  uint32_t grid, uint32_t weights) {
  const uint32_t lane = lane_now(), g = lane / 4, t = lane % 4;
  float x0 = s[0][0], x1 = s[0][1];
#pragma unroll
  for (int i = 0; i < 4; ++i) x0 = fmaxf(x0, fmaxf(s[i][0], s[i][2])), x1 = fmaxf(x1, fmaxf(s[i][1], s[i][3]));
#pragma unroll
  for (int d = 2; d < 32; d *= 2) x0 = fmaxf(x0, __shfl_xor_sync(~0u, x0, d)), x1 = fmaxf(x1, __shfl_xor_sync(~0u, x1, d));
  const float n0 = -x0 * scale.x, n1 = -x1 * scale.y;
  const float y0 = base.x - n0, y1 = base.y - n1;
  state.raise(y0, y1);
  const float e0 = power2(y0 - state.top0), e1 = power2(y1 - state.top1);
  const float up = kWholeWeight / most;
  constexpr float kMagic = 8388608.0f;
  float total0 = 0.0f, total1 = 0.0f, offset0 = 0.0f, offset1 = 0.0f;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    uint32_t p[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float(&x)[4] = s[2 * j + i];
      const uint32_t at = grid + (4 * j + 2 * i + t / 2) * 64 + g * 8;
      const float2 by = load2f(at), more = load2f(at + 512);
      const float u = by.x * up, v = by.y * up;
      const float a0 = power2(fmaf(x[0], scale.x, n0)), a1 = power2(fmaf(x[1], scale.y, n1));
      const float b0 = power2(fmaf(x[2], scale.x, n0)), b1 = power2(fmaf(x[3], scale.y, n1));
      total0 += a0 + b0, total1 += a1 + b1;
      offset0 = fmaf(a0, more.x, fmaf(b0, more.y, offset0)), offset1 = fmaf(a1, more.x, fmaf(b1, more.y, offset1));
      p[2 * i] = __byte_perm(__float_as_uint(fmaf(a0, u, kMagic)), __float_as_uint(fmaf(a1, u, kMagic)), 0x5410);
      p[2 * i + 1] = __byte_perm(__float_as_uint(fmaf(b0, v, kMagic)), __float_as_uint(fmaf(b1, v, kMagic)), 0x5410);
    }
    // Row `row` of matrix `lane / 8`: rows 4..7 are those of the odd tiles.
    const uint32_t row = lane % 8, tile = 4 * j + lane / 16 * 2 + row / 4;
    store_transposed(weights + weight_slot(tile, lane / 8 % 2, row % 4), p[0], p[1], p[2], p[3]);
  }
  state.total0 = fmaf(e0, total0, state.total0), state.total1 = fmaf(e1, total1, state.total1);
  state.offset0 = fmaf(e0, offset0, state.offset0), state.offset1 = fmaf(e1, offset1, state.offset1);
  return {e0 * most, e1 * most};
}

TIERKV_DEVICE void join_operands(uint32_t weights, uint32_t (&b)[4][2]) {
  const uint32_t lane = lane_now(), g = lane / 4, t = lane % 4, which = g < 4 ? 0x7351u : 0x6240u;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint4 even = load4(weights + weight_slot(t + 4 * h, 0, g % 4)),
                others = load4(weights + weight_slot(t + 4 * h, 1, g % 4));
    b[0][h] = __byte_perm(even.x, others.x, which), b[1][h] = __byte_perm(even.y, others.y, which);
    b[2][h] = __byte_perm(even.z, others.z, which), b[3][h] = __byte_perm(even.w, others.w, which);
  }
}

// What a warp asks far memory for ahead of its next pair of blocks, so that it neither waits nor keeps registers for it. Positions
// go to `ahead`, and behind them the one that kOtherDigits is of. When they are there, and factors are not needed any more, the
// turn of the first one's middle digit goes to the factors' place.
TIERKV_DEVICE void ask_positions(const ViewDesc* views, uint32_t at, uint32_t last, uint32_t ahead) {
  const uint32_t lane = lane_now();
  if (lane < 3) fetch4(ahead + lane * 4, &views[lane == 2 ? 0 : min(at + lane, last)].first_position);
}
template <uint32_t D>
TIERKV_DEVICE void ask_turn(const float* tables, uint32_t position, uint32_t to) {
  constexpr uint32_t kPairs = D / 2;
  const uint32_t value = position >> 7 & (quant::kTurnBase - 1);
  const float* const row = tables + (quant::kTurnBase + value) * 2 * kPairs + part_of_row<D>() * 2;
  fetch8(to + lane_now() * 16, row), fetch8(to + lane_now() * 16 + 8, row + kPairs);
}
// Turns of a pair of blocks whose positions are at `ahead`.
template <uint32_t D>
TIERKV_DEVICE void take_turns(const float* tables, const KltWarp& own, uint32_t ahead) {
  const uint2 here = load2(ahead);
  const bool fetched = ((here.x ^ load1(ahead + 8)) & ~kMiddleDigit) == 0;
  const float4 x = fetched ? both_turns(load_turn(own.factors), load_turn(own.kept + kOtherDigits)) : whole_turn<D>(tables, here.x);
  const float4 y = here.y == here.x + kTileRows ? both_turns(x, load_turn(own.kept + kOneBlock)) : whole_turn<D>(tables, here.y);
  store_turns<D>(own.turns, x, y);
}

template <uint32_t D>
TIERKV_DEVICE void attend_klt_whole_views(const Launch& launch, const SegmentDesc& segment, const FastPiece& piece,
                                          WarpCopies& copies, const KltWarp& own, uint32_t warps, uint32_t basis, uint32_t query,
                                          uint32_t table, uint32_t units, WholeState<D>& state) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const FastCodec& codec = piece.codec;
  const MetaTerms terms = piece.value_terms();
  const uint32_t key_bytes = codec.key_bytes, value_bytes = codec.value_bytes, tile_bytes = key_bytes / 8;
  const uint32_t steps = codec.steps, grouped = codec.grouped, pairs = (steps + 1) / 2;
  const uint32_t ahead = own.kept + kOnePass + warp * KltWholeShape::kAhead, heads = units + t % 2 * 8;
  const ViewDesc* views = launch.views + segment.first_view;
  for (uint32_t first = warp * 2; first < segment.views; first += 2 * warps) {
    const uint32_t both = min(2u, segment.views - first);
    const bool last_pair = first + 2 * warps >= segment.views;
    __syncwarp();
    if (first != warp * 2) {  // the first ones are there
      wait_for_fetched();
      take_turns<D>(codec.turns, own, ahead);
      __syncwarp();
    }
    if (!last_pair) ask_positions(views, first + 2 * warps, segment.views - 1, ahead);
    TurnedQuery<D> q;
    turn_query<D>(query, own.turns, true, q);
    const float2 bases = load_byte_factors<D>(basis, table, steps, q, load2f(heads + 16), own.factors);
    // A last step without a partner: the partner's factors are zeros.
    if (steps % 2 != 0) {
#pragma unroll
      for (uint32_t block = 0; block < 2; ++block) store1(factor_at(own.factors, pairs, block, steps, lane / 16, lane), 0);
    }
    __syncwarp();
#pragma unroll 1
    for (uint32_t odd = 0; odd < both; ++odd, copies.phase ^= 1) {
      // The next block of this warp; of a last, single one there is no second.
      const uint32_t next = odd + 1 < both ? first + 1 : first + 2 * warps;
      const bool more = next < segment.views;
      // Read now, needed when the slots are free: the addresses must not be waited for then.
      const uint8_t* const next_keys = views[more ? next : first].keys;
      const uint8_t* const next_values = views[more ? next : first].values;
      // Columns of this block are those of lanes 2·odd and 2·odd + 1 of a quad.
      const uint32_t from = t % 2 + 2 * odd;
      const float2 base{__shfl_sync(~0u, bases.x, from), __shfl_sync(~0u, bases.y, from)};
      float s[4][4];
      barrier_wait(copies.keys, copies.phase);
      {
        int x[8][4], middle[4];
        byte_scores(own.keys + g * 8, tile_bytes, table, steps, grouped, factor_at(own.factors, pairs, odd, 0, g / 4, lane), x,
                    middle);
        join_scores(x, middle, s);
      }
      if (odd + 1 == both && !last_pair) {
        wait_for_fetched();
        __syncwarp();
        ask_turn<D>(codec.turns, load1(ahead), own.factors);
      }
      __syncwarp();
      if (more && lane == 0) copy_in(own.keys, next_keys, key_bytes, copies.keys);
      barrier_wait(copies.values, copies.phase);
      const float most = whole_grid(terms, own.values + 32 * D, own.grid);
      const float2 by = join_weights(state, s, load2f(heads), base, most, own.grid, own.weights);
      __syncwarp();
      uint32_t b[4][2];
      join_operands(own.weights, b);
      whole_values(state, own.values, b, by);
      __syncwarp();
      if (more && lane == 0) copy_in(own.values, next_values, value_bytes, copies.values);
    }
  }
}

template <uint32_t D>
TIERKV_DEVICE void attend_klt_whole(const Launch& launch, const SegmentDesc& segment, const FastPiece& piece, const TableCopy& once,
                                    WarpCopies& copies, uint8_t* memory) {
  using S = KltWholeShape;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const FastCodec& codec = piece.codec;
  const uint32_t steps = codec.steps, pairs = (steps + 1) / 2;
  uint8_t* const query = memory;
  uint8_t* const table = query + kKltQuery;
  uint8_t* const kept = table + kKltByteTable;
  auto* const units = reinterpret_cast<float*>(kept + kKltKept);
  uint8_t* const basis = kept + kKltKept + 128;
  uint8_t* const slots = basis + (steps + 1) * kKltTile<D>;

  // As many warps as have room, in fours: every scheduler of a multiprocessor gets as many. Weights want whole lines of banks.
  const uint32_t key_slot = codec.key_bytes, value_slot = codec.value_bytes, own_bytes = pairs * 512 + key_slot + value_slot;
  const uint32_t all = kKltBytes - static_cast<uint32_t>(slots - memory);
  const uint32_t warps = min(all / (S::kLines + own_bytes) / 4 * 4, kThreads / 32);
  KltWarp own;
  own.weights = shared_address(slots + warp * S::kLines);
  own.grid = own.weights + S::kWeights;
  own.kept = shared_address(kept);
  own.turns = own.weights;  // which are written after turns were read
  own.factors = shared_address(slots + warps * S::kLines + warp * own_bytes);
  own.terms = 0;
  own.keys = own.factors + pairs * 512;
  own.values = own.keys + key_slot;
  own.now = 0;

  // Everything that far memory is asked for comes before anything that waits for it: what a segment begins with takes two ways
  // there and back, for its descriptors and for the turns of its positions.
  ask_klt_tables<D, true>(codec, once, table, basis);
  const bool any = warp < warps && warp * 2 < segment.views;
  const ViewDesc* const view = launch.views + segment.first_view + (any ? warp * 2 : 0);
  const uint32_t position = view->first_position, second = view[any && warp * 2 + 1 < segment.views ? 1 : 0].first_position;
  const uint8_t *const keys = view->keys, *const values = view->values;
  const KltQuery<D> own_query(launch, segment);
  const KltUnits<D> own_units(launch, segment, codec);
  const TurnRows<D> here(codec.turns, position), there(codec.turns, second);
  own_query.put(launch, query);
  own_units.put(launch, units);
  if (any) store_turns<D>(own.turns, here.whole(), there.whole());
  if (warp == 0) reinterpret_cast<float4*>(kept + kOtherDigits)[lane] = here.others();
  if (warp == 1) reinterpret_cast<float4*>(kept + kOneBlock)[lane] = turn_row<D>(codec.turns, kTileRows, 1);
  __syncthreads();
  barrier_wait(once.barrier, once.parity);
  // All multiprocessors ask for their first blocks at once, and it takes microseconds until they are there. What they are met with
  // comes before, or it would wait behind them, and is made meanwhile.
  if (any && lane == 0) copy_in(own.keys, keys, key_slot, copies.keys), copy_in(own.values, values, value_slot, copies.values);
  WholeState<D> state;
  if (warp < warps) {
    attend_klt_whole_views<D>(launch, segment, piece, copies, own, warps, shared_address(basis), shared_address(query),
                              shared_address(table), shared_address(units), state);
  }
  // Both lanes of a head had tokens of their own.
  state.total0 += __shfl_xor_sync(~0u, state.total0, 2), state.total1 += __shfl_xor_sync(~0u, state.total1, 2);
  state.offset0 += __shfl_xor_sync(~0u, state.offset0, 2), state.offset1 += __shfl_xor_sync(~0u, state.offset1, 2);
  WarpState<D> end = ended(state);
  end_segment(launch, segment, end, warps, 0.0f, true, codec.value_hadamard, memory);
}

#endif

}  // namespace tierkv::cuda
