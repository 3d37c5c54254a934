// whole.cuh — 2-bit codes on one grid (kivi2, rot2) as whole numbers: products of bytes, groups of up to 4 heads of 128
// channels.
//
// One AND takes four codes out of a word instead of two, and a product takes 32 of them instead of 16. A field of a byte is the
// code, or four times the code, which is made good later; higher fields are shifted down first.
//
// Keys:    factors are the query (kivi: times the channels' scales, block by block) in 16 bits of the largest, a high and a low
// byte,
//          both signed; those of fields of four times the code are a quarter.
// Values:  weights times the tokens' scales are in 16 bits of the largest of the block, as bytes: columns 0..3 of the product have
//          the high ones, 4..7 the low ones. Fields of four times the code have sums of their own: values are where bits are short.
//          Sums of a block become floats, so nothing is lost between blocks.
// Columns: 4..7 of the scores are the same heads as 0..3.
#pragma once

#include "cuda/decode/halves.cuh"
#include "cuda/decode/packed.cuh"

namespace tierkv::cuda {

struct WholeShape {
  static constexpr uint32_t kCodes = 4096, kSlot = kCodes + 512, kTile = kCodes / 8;
  // Of a warp: copies of keys and values, weights, the values' grid, the tokens' scales.
  static constexpr uint32_t kWeights = 2 * kWeightBytes, kGrid = 1024, kWarp = 2 * kSlot + kWeights + kGrid + 512;
  // Factors of the query as floats and halves (kivi) or bytes (rot), its plain operands, its rows, and units and sums of its heads.
  static constexpr uint32_t kFactors = 8 * 32 * 24, kPlain = 8 * 64 * 4, kRows = 4 * (kTileRows + 4) * 4;
  static constexpr uint32_t kBytes = kThreads / 32 * kWarp + kFactors + kPlain + kRows + 64;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

inline constexpr float kWholeMost = 32000.0f, kWholeWeight = 65000.0f;
inline constexpr float kWholeMagic = 12582912.0f;  // 1.5·2^23: what is added to it is rounded to a whole number in the low bits

// Four factors, within the range of 16 bits, as signed bytes: the low and the high ones.
TIERKV_DEVICE uint2 signed_bytes(float a, float b, float c, float d) {
  const uint32_t x = __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x5140);
  const uint32_t y = __byte_perm(__float_as_uint(c), __float_as_uint(d), 0x5140);
  return {__byte_perm(x, y, 0x5410) ^ 0x80808080u, __byte_perm(x, y, 0x7632)};
}

// The largest of a quad's.
TIERKV_DEVICE float over_quad(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// A query's factors of [half of the chunks][field][lane]: four floats, and behind them all two pairs of halves; or bytes, of both
// halves of [field][lane] the low ones and then the high ones, in the heads' `units`; `sums` are of those. `x`: channels 4·lane ..
// 4·lane+3 of head `warp`.
template <bool kByChannel>
TIERKV_DEVICE void load_whole_query(float (&x)[4], bool hadamard, uint32_t* factors, uint32_t* plain, float* rows, float* units,
                                    int* sums) {
  constexpr uint32_t kRow = kTileRows + 4;
  const uint32_t warp = threadIdx.x / 32;
  if (const uint32_t lane = threadIdx.x % 32; warp < 4) {
    if (hadamard) turn_frame<kTileRows>(x, true);
    *reinterpret_cast<float4*>(rows + warp * kRow + lane * 4) = {x[0], x[1], x[2], x[3]};
    float most = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
#pragma unroll
    for (int d = 1; d < 32; d *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    if (lane == 0) units[warp] = fmaxf(most, 1e-30f) / kWholeMost, sums[warp] = 0;
  }
  __syncthreads();
  if (threadIdx.x < 256) {
    const uint32_t step = threadIdx.x / 32, lane = threadIdx.x % 32, h = step / 4, f = step % 4, head = lane / 4 % 4;
    const float* const from = rows + head * kRow + 16 * (lane % 4 + 4 * h) + 4 * f;
    if constexpr (kByChannel) {
      reinterpret_cast<float4*>(factors)[threadIdx.x] = {from[0], from[1], from[2], from[3]};
      uint32_t* const to = factors + 1024 + ((step / 2 * 32 + lane) * 2 + step % 2) * 2;
      to[0] = pack_halves(from[0], from[1]), to[1] = pack_halves(from[2], from[3]);
    } else {
      constexpr float kMagic = kWholeMagic + 128.0f;
      const float down = 1.0f / (units[head] * (f % 2 == 0 ? 1.0f : 4.0f));
      const float r[4] = {fmaf(from[0], down, kMagic), fmaf(from[1], down, kMagic), fmaf(from[2], down, kMagic),
                          fmaf(from[3], down, kMagic)};
      const uint2 bytes = signed_bytes(r[0], r[1], r[2], r[3]);
      uint32_t* const to = factors + (f * 32 + lane) * 4 + h;
      to[0] = bytes.x, to[2] = bytes.y;
      int sum = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) sum += static_cast<int>(r[e] - kMagic);
      if (lane < 16) atomicAdd(sums + head, f % 2 == 0 ? sum : 4 * sum);
    }
  }
  for (uint32_t i = threadIdx.x; i < 512; i += kThreads) {
    const uint32_t step = i / 64, lane = i / 2 % 32, j = i % 2, h = step / 4, f = step % 4;
    const float* const from = rows + lane / 4 % 4 * kRow + 16 * (lane % 4 + 4 * h) + 4 * f + j;
    plain[(step / 2 * 32 + lane) * 4 + step % 2 * 2 + j] = pack_halves(from[0], from[2]);
  }
}

// The product of the channels' means (or minimums) with the query: what every score begins with.
template <bool kAligned>
TIERKV_DEVICE float2 whole_base(uint32_t mean_at, uint32_t plain) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float base[4] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t mean[8];
    load_pairs<8, kAligned>(mean_at + (t + 4 * h) * 32, mean);
#pragma unroll
    for (int f = 0; f < 4; f += 2) {
      const uint4 z = load4(plain + lane * 16 + (4 * h + f) / 2 * 512);
      multiply(base, g == 0 ? mean[2 * f] : 0u, 0, g == 0 ? mean[2 * f + 1] : 0u, 0, z.x, z.y);
      multiply(base, g == 0 ? mean[2 * f + 2] : 0u, 0, g == 0 ? mean[2 * f + 3] : 0u, 0, z.z, z.w);
    }
  }
  return {__shfl_sync(~0u, base[0], t), __shfl_sync(~0u, base[1], t)};
}

// Factors of one block of kivi: the query times the channels' scales. Halves say what the largest is, floats what they are. Returns
// their unit, of this lane's columns.
TIERKV_DEVICE float2 whole_factors(uint32_t scales, uint32_t factors, uint32_t (&low)[4][2], uint32_t (&high)[4][2]) {
  const uint32_t lane = threadIdx.x % 32, t = lane % 4;
  uint32_t s[2][8];
  __half2 most = __float2half2_rn(0.0f);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 v = load4(scales + (t + 4 * h) * 32 + 16 * i), q = load4(factors + 4096 + (2 * h + i) * 512 + lane * 16);
      s[h][4 * i] = v.x, s[h][4 * i + 1] = v.y, s[h][4 * i + 2] = v.z, s[h][4 * i + 3] = v.w;
      const uint32_t p[4] = {times(q.x, v.x), times(q.y, v.y), times(q.z, v.z), times(q.w, v.w)};
#pragma unroll
      for (int k = 0; k < 4; ++k) most = __hmax2(most, __habs2(*reinterpret_cast<const __half2*>(&p[k])));
    }
  }
  const float top = fmaxf(over_quad(fmaxf(__low2float(most), __high2float(most))), 1e-8f);
  const float down = __fdividef(kWholeMost, top), unit = top / kWholeMost, less = 0.25f * down;
  constexpr float kMagic = kWholeMagic + 128.0f;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int f = 0; f < 4; ++f) {
      const float2 u = halves_of(s[h][2 * f]), v = halves_of(s[h][2 * f + 1]);
      const uint4 raw = load4(factors + (h * 4 + f) * 512 + lane * 16);
      const float by = f % 2 == 0 ? down : less;
      const float a = __uint_as_float(raw.x) * u.x, b = __uint_as_float(raw.y) * u.y;
      const float c = __uint_as_float(raw.z) * v.x, d = __uint_as_float(raw.w) * v.y;
      const uint2 bytes = signed_bytes(fmaf(a, by, kMagic), fmaf(b, by, kMagic), fmaf(c, by, kMagic), fmaf(d, by, kMagic));
      low[f][h] = bytes.x, high[f][h] = bytes.y;
    }
  }
  return {__shfl_sync(~0u, unit, 2 * t % 4 * 4), __shfl_sync(~0u, unit, (2 * t + 1) % 4 * 4)};
}

// Sums of codes and factors, of rows g and g+8 of every tile.
TIERKV_DEVICE void whole_scores(uint32_t keys, const uint32_t (&low)[4][2], const uint32_t (&high)[4][2], float (&s)[8][4]) {
  const uint32_t lane = threadIdx.x % 32, at = keys + lane % 4 * 64 + lane / 4 * 8;
#pragma unroll
  for (int tile = 0; tile < 8; ++tile) {
    uint2 a = load2(at + tile * WholeShape::kTile), b = load2(at + tile * WholeShape::kTile + 256);
    int x[4] = {}, y[4] = {};
#pragma unroll
    for (int f = 0; f < 4; ++f) {
      const uint32_t mask = f % 2 == 0 ? 0x03030303u : 0x0C0C0C0Cu;
      if (f == 2) a.x >>= 4, a.y >>= 4, b.x >>= 4, b.y >>= 4;
      const uint32_t p = a.x & mask, q = a.y & mask, r = b.x & mask, v = b.y & mask;
      multiply_signed(x, p, q, r, v, high[f][0], high[f][1]);
      multiply_signed(y, p, q, r, v, low[f][0], low[f][1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[tile][i] = static_cast<float>(x[i] * 256 + y[i]);
  }
}

// The largest of numbers that are not negative: their bits are in order.
TIERKV_DEVICE float over_warp(float x) { return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(x))); }

// Scales and offsets of a block's values, as floats to `grid`: 128 each. Returns the largest scale.
TIERKV_DEVICE float whole_grid(const MetaTerms& terms, uint32_t meta, uint32_t grid) {
  const uint32_t lane = threadIdx.x % 32;
  float scale[4], offset[4];
  load_four(terms, meta, scale, offset);
  store4f(grid + lane * 16, scale[0], scale[1], scale[2], scale[3]);
  store4f(grid + 512 + lane * 16, offset[0], offset[1], offset[2], offset[3]);
  __syncwarp();
  return fmaxf(over_warp(fmaxf(fmaxf(fmaxf(scale[0], scale[1]), fmaxf(scale[2], scale[3])), 0.0f)), 1e-30f);
}

// Of a warp and heads of D channels. Sums of values are of the high bytes of weights in columns 0..3, and of the low ones in 4..7.
template <uint32_t D>
struct WholeState {
  float sums[D / 32][2][4] = {};
  float total0 = 0.0f, total1 = 0.0f, offset0 = 0.0f, offset1 = 0.0f;
  float top0 = -1e30f, top1 = -1e30f;  // that everything is relative to

  // What is far above makes everything relative to itself. Floats have room for the rest.
  TIERKV_DEVICE void raise(float y0, float y1) {
    constexpr float kRoom = 40.0f;
    if (!__any_sync(~0u, y0 > top0 + kRoom || y1 > top1 + kRoom)) return;
    const float x0 = fmaxf(top0, y0), x1 = fmaxf(top1, y1), a0 = power2(top0 - x0), a1 = power2(top1 - x1);
    top0 = x0, top1 = x1;
    total0 *= a0, total1 *= a1, offset0 *= a0, offset1 *= a1;
#pragma unroll
    for (uint32_t i = 0; i < D / 4; ++i) sums[i / 8][i / 4 % 2][i % 4] *= i % 2 ? a1 : a0;
  }
};

// Scores of a block, s·scale + base, become weights against the block's largest, as whole numbers in shared memory. Returns what
// brings them to the state's.
TIERKV_DEVICE float2 whole_weights(WholeState<kTileRows>& state, const float (&s)[8][4], float2 scale, float2 base, float most,
                                   uint32_t grid, uint32_t weights) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4;
  float x0 = s[0][0], x1 = s[0][1];
#pragma unroll
  for (int i = 0; i < 8; ++i) x0 = fmaxf(x0, fmaxf(s[i][0], s[i][2])), x1 = fmaxf(x1, fmaxf(s[i][1], s[i][3]));
#pragma unroll
  for (int d = 4; d < 32; d *= 2) x0 = fmaxf(x0, __shfl_xor_sync(~0u, x0, d)), x1 = fmaxf(x1, __shfl_xor_sync(~0u, x1, d));
  const float n0 = -x0 * scale.x, n1 = -x1 * scale.y;
  const float y0 = base.x - n0, y1 = base.y - n1;
  state.raise(y0, y1);
  const float e0 = power2(y0 - state.top0), e1 = power2(y1 - state.top1);
  const float up = kWholeWeight / most;
  const uint32_t to = weights + lane / 8 * 128 + ((lane % 8 + 2 * (lane / 16)) % 8) * 16;
  constexpr float kMagic = 8388608.0f;
  float total0 = 0.0f, total1 = 0.0f, offset0 = 0.0f, offset1 = 0.0f;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t p[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float(&x)[4] = s[2 * j + i];
      const float2 by = load2f(grid + (2 * j + i) * 64 + g * 8), more = load2f(grid + 512 + (2 * j + i) * 64 + g * 8);
      const float u = by.x * up, v = by.y * up;
      const float a0 = power2(fmaf(x[0], scale.x, n0)), a1 = power2(fmaf(x[1], scale.y, n1));
      const float b0 = power2(fmaf(x[2], scale.x, n0)), b1 = power2(fmaf(x[3], scale.y, n1));
      total0 += a0 + b0, total1 += a1 + b1;
      offset0 = fmaf(a0, more.x, fmaf(b0, more.y, offset0)), offset1 = fmaf(a1, more.x, fmaf(b1, more.y, offset1));
      p[2 * i] = __byte_perm(__float_as_uint(fmaf(a0, u, kMagic)), __float_as_uint(fmaf(a1, u, kMagic)), 0x5410);
      p[2 * i + 1] = __byte_perm(__float_as_uint(fmaf(b0, v, kMagic)), __float_as_uint(fmaf(b1, v, kMagic)), 0x5410);
    }
    store_transposed((to + j * 512) ^ (j % 2 * 64), p[0], p[1], p[2], p[3]);
  }
  state.total0 = fmaf(e0, total0, state.total0), state.total1 = fmaf(e1, total1, state.total1);
  state.offset0 = fmaf(e0, offset0, state.offset0), state.offset1 = fmaf(e1, offset1, state.offset1);
  return {e0 * most, e1 * most};
}

// The weights as operands: high bytes for columns 0..3 of a product, low ones for 4..7.
TIERKV_DEVICE void whole_operands(uint32_t weights, uint32_t (&b)[4][2]) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, which = g < 4 ? 0x7351u : 0x6240u;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t chunk = t + 4 * h, at = weights + chunk * 256 + (g + 2 * chunk) % 8 * 16;
    const uint4 even = load4(at), others = load4(at + 128);
    b[0][h] = __byte_perm(even.x, others.x, which), b[1][h] = __byte_perm(even.y, others.y, which);
    b[2][h] = __byte_perm(even.z, others.z, which), b[3][h] = __byte_perm(even.w, others.w, which);
  }
}

// Adds a block's values, times `by`.
template <uint32_t D>
TIERKV_DEVICE void whole_values(WholeState<D>& state, uint32_t values, const uint32_t (&b)[4][2], float2 by) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t first = values + g / 4 * WholeShape::kTile + t * 64 + g % 4 * 16;
#pragma unroll
  for (uint32_t w = 0; w < D / 32; ++w) {
    uint4 u = load4(first + w * 2 * WholeShape::kTile), v = load4(first + w * 2 * WholeShape::kTile + 256);
    int c[2][4] = {}, d[2][4] = {};  // of fields that are the code, and of those that are four times the code
#pragma unroll
    for (int f = 0; f < 4; ++f) {
      const uint32_t mask = f % 2 == 0 ? 0x03030303u : 0x0C0C0C0Cu;
      if (f == 2) u.x >>= 4, u.y >>= 4, u.z >>= 4, u.w >>= 4, v.x >>= 4, v.y >>= 4, v.z >>= 4, v.w >>= 4;
      multiply_unsigned(c[f % 2], u.x & mask, u.y & mask, v.x & mask, v.y & mask, b[f][0], b[f][1]);
      multiply_unsigned(d[f % 2], u.z & mask, u.w & mask, v.z & mask, v.w & mask, b[f][0], b[f][1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      state.sums[w][0][i] = fmaf(i % 2 ? by.y : by.x, static_cast<float>(c[0][i] * 4 + c[1][i]), state.sums[w][0][i]);
      state.sums[w][1][i] = fmaf(i % 2 ? by.y : by.x, static_cast<float>(d[0][i] * 4 + d[1][i]), state.sums[w][1][i]);
    }
  }
}

// As end_segment() has it: columns c and c + 4 are one head.
template <uint32_t D>
TIERKV_DEVICE WarpState<D> ended(const WholeState<D>& whole) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const float2 total = over_rows(whole.total0, whole.total1), offset = over_rows(whole.offset0, whole.offset1);
  const float scale = (t < 2 ? 64.0f : 0.25f) / (kWholeWeight * 16777216.0f);
  WarpState<D> state;
#pragma unroll
  for (uint32_t i = 0; i < D / 4; ++i) state.sums[i / 8][i / 4 % 2][i % 4] = whole.sums[i / 8][i / 4 % 2][i % 4] * scale;
  const bool once = t < 2;
  state.rows[0] = once ? (g == 0 ? offset.x : total.x) : 0.0f, state.rows[1] = once ? (g == 0 ? offset.y : total.y) : 0.0f;
  state.top0 = whole.top0, state.top1 = whole.top1;
  state.unit = 1.0f;
  return state;
}

TIERKV_DEVICE void begin_whole(const Launch& launch, const FastPiece& piece, const WarpCopies& copies, uint8_t* memory) {
  using S = WholeShape;
  const uint32_t warp = threadIdx.x / 32, keys = shared_address(memory + warp * S::kWarp);
  if (warp >= piece.segment.views || threadIdx.x % 32 != 0) return;
  const ViewDesc& view = launch.views[piece.segment.first_view + warp];
  const uint8_t *const from = view.keys, *const others = view.values;
  copy_in(keys, from, piece.codec.key_bytes, copies.keys);
  copy_in(keys + S::kSlot, others, piece.codec.value_bytes, copies.values);
}

template <bool kByChannel>
TIERKV_DEVICE void attend_whole(const Launch& launch, const FastPiece& piece, WarpCopies& copies, uint8_t* memory) {
  using S = WholeShape;
  constexpr uint32_t kWarps = kThreads / 32;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
  const SegmentDesc& segment = piece.segment;
  const ViewDesc* views = launch.views + segment.first_view;
  const FastCodec& codec = piece.codec;
  float query[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float* const from = launch.queries + static_cast<size_t>(segment.first_row + warp) * kTileRows + lane * 4 + e;
    query[e] = warp < launch.group ? __ldg(from) * (launch.scale * kLog2E) : 0.0f;
  }
  if (warp < kWarps / 2) begin_whole(launch, piece, copies, memory);
  uint8_t* const factors = memory + kWarps * S::kWarp;
  auto* const plain = reinterpret_cast<uint32_t*>(factors + S::kFactors);
  auto* const rows = reinterpret_cast<float*>(factors + S::kFactors + S::kPlain);
  auto* const units = reinterpret_cast<float*>(factors + S::kFactors + S::kPlain + S::kRows);
  auto* const sums = reinterpret_cast<int*>(units + 4);
  load_whole_query<kByChannel>(query, codec.key_hadamard, reinterpret_cast<uint32_t*>(factors), plain, rows, units, sums);
  __syncthreads();
  if (warp >= kWarps / 2) begin_whole(launch, piece, copies, memory);

  const uint32_t keys = shared_address(memory + warp * S::kWarp), values = keys + S::kSlot, weights = values + S::kSlot;
  const uint32_t grid = weights + S::kWeights, scales = grid + S::kGrid;
  const uint32_t factors_at = shared_address(factors), plain_at = shared_address(plain);
  const bool has_mean = kByChannel || codec.mean_at != 0;
  const uint32_t mean_at = keys + (kByChannel ? S::kCodes + 256 : codec.mean_at);
  const float2 unit{units[2 * t % 4], units[2 * t % 4 + 1]};
  const float2 begin{-codec.key_zero * unit.x * static_cast<float>(sums[2 * t % 4]),
                     -codec.key_zero * unit.y * static_cast<float>(sums[2 * t % 4 + 1])};
  WholeState<kTileRows> state;
  for (uint32_t v = warp; v < segment.views; v += kWarps, copies.phase ^= 1) {
    const bool more = v + kWarps < segment.views;
    // Read now, needed when the slots are free: the addresses must not be waited for then.
    const uint8_t* const next_keys = views[more ? v + kWarps : v].keys;
    const uint8_t* const next_values = views[more ? v + kWarps : v].values;
    uint32_t low[4][2], high[4][2];
    float s[8][4];
    float2 scale{1.0f, 1.0f}, base{0.0f, 0.0f};
    barrier_wait(copies.keys, copies.phase);
    if (has_mean) base = whole_base<kByChannel>(mean_at, plain_at);
    if constexpr (kByChannel) {
      scale = whole_factors(keys + S::kCodes, factors_at, low, high);
    } else {
      float own[4];
      log8_levels(load1f(keys + S::kCodes), load1(keys + S::kCodes + 4 + lane * 4), own);
      store4f(scales + lane * 16, own[0], own[1], own[2], own[3]);
      __syncwarp();
#pragma unroll
      for (int f = 0; f < 4; ++f) {
        const uint4 bytes = load4(factors_at + f * 512 + lane * 16);
        low[f][0] = bytes.x, low[f][1] = bytes.y, high[f][0] = bytes.z, high[f][1] = bytes.w;
      }
    }
    whole_scores(keys, low, high, s);
    if constexpr (!kByChannel) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float2 by = load2f(scales + i * 64 + lane / 4 * 8);
        s[i][0] = fmaf(s[i][0], unit.x, begin.x) * by.x, s[i][1] = fmaf(s[i][1], unit.y, begin.y) * by.x;
        s[i][2] = fmaf(s[i][2], unit.x, begin.x) * by.y, s[i][3] = fmaf(s[i][3], unit.y, begin.y) * by.y;
      }
    }
    __syncwarp();
    if (more && lane == 0) copy_in(keys, next_keys, piece.codec.key_bytes, copies.keys);
    barrier_wait(copies.values, copies.phase);
    const float most = whole_grid(piece.value_terms(), values + S::kCodes, grid);
    const float2 by = whole_weights(state, s, scale, base, most, grid, weights);
    __syncwarp();
    uint32_t b[4][2];
    whole_operands(weights, b);
    whole_values(state, values, b, by);
    __syncwarp();
    if (more && lane == 0) copy_in(values, next_values, piece.codec.value_bytes, copies.values);
  }
  WarpState<kTileRows> end = ended(state);
  end_segment(launch, segment, end, kWarps, 0.0f, true, codec.value_hadamard, memory);
}

#endif

}  // namespace tierkv::cuda
