// fast.cuh — what the tensor-core paths share: the state of a warp, values of 2, 3 or 4 bits, and the end of a segment.
//
// A warp takes one block of 128 tokens at a time, in two halves of 64. Scores are S^T = K·Q^T, outputs O^T = V^T·P^T: codes are the
// A operand, as they lie in memory. A code at bits p.. of a half *is* the number code·2^(p-24), a subnormal, so one AND unpacks two
// codes; 2^-p goes into the other operand. Tensor cores round sums down, so every 64 tokens they are added to floats.
//
// Tokens:   rows g and g+8 of a tile of scores are tokens 2g and 2g+1, so that weights, transposed by stmatrix, lie in the order
//           in which the words of values want them: [tile][odd][head][8 tokens].
// Channels: lane (g, t) has the sums of channels 32w + 4g + 2m (+1) for heads 2t and 2t+1 in sums[w][m].
// Heads:    eight columns. Where a path folds (klt), columns 4..7 are the same heads against another block.
#pragma once

#include "cuda/decode/common.cuh"
#include "cuda/launch/fast_codec.h"
#include "cuda/simt/warp.cuh"

namespace tierkv::cuda {

inline constexpr float kCode = 16777216.0f;  // a code's place in a half is 2^-24
inline constexpr float kPatience = 4.0f;     // weights may grow to 2^4 before sums are rescaled
inline constexpr uint32_t kWeightBytes = 1024;
inline constexpr uint32_t kGridBytes = 512;  // 128 scales and 128 offsets of values, as halves

// Queries of so few channels are two halves each, one for what the other leaves out: less evens out what is rounded off.
template <uint32_t D>
inline constexpr bool kTwoHalves = D == 64;

// Of heads of D channels.
template <uint32_t D>
struct WarpState {
  float sums[D / 32][2][4] = {};
  float rows[4] = {};  // row 0: weights times offsets; row 1: weights
  float top0 = -1e30f, top1 = -1e30f;
  float unit = 0.0f, down = 0.0f;  // value scales are in units of this, and its inverse; 0: none was seen yet

  TIERKV_DEVICE void shrink(float a0, float a1) {
    rows[0] *= a0, rows[1] *= a1;
#pragma unroll
    for (uint32_t w = 0; w < D / 32; ++w) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        sums[w][m][0] *= a0, sums[w][m][1] *= a1;
        sums[w][m][2] *= a0, sums[w][m][3] *= a1;
      }
    }
  }
};

using Barriers = uint64_t[kThreads / 32][2];  // of all warps, in shared memory

// The two barriers of a warp (its keys' and its values' copies) and how often they have been waited for.
struct WarpCopies {
  uint32_t keys, values;
  uint32_t phase = 0;
  TIERKV_DEVICE WarpCopies(const Barriers& all, uint32_t warp)
      : keys(shared_address(&all[warp][0])), values(shared_address(&all[warp][1])) {}
};

// A segment and its codec. In shared memory: registers are what the loops over codes lack.
struct FastPiece {
  SegmentDesc segment;
  FastCodec codec;
  TIERKV_DEVICE MetaTerms value_terms() const { return {codec.value_meta, codec.value_zero}; }
};

// A row of D channels in a warp: a lane has channels 4·part .. 4·part+3. Of 64 channels the upper lanes have what the lower ones
// have.
template <uint32_t D>
TIERKV_DEVICE uint32_t part_of_row() {
  return threadIdx.x % (D / 4);
}

// Into the Hadamard frame, or out of it: a warp has one row.
template <uint32_t D>
struct FrameSigns {
  uint32_t words[4] = {};
  constexpr FrameSigns() {
    for (uint32_t c = 0; c < D; ++c) words[c / 32] |= frame_sign(D, c) < 0.0f ? 1u << (c % 32) : 0u;
  }
};
template <uint32_t D>
TIERKV_DEVICE void turn_frame(float (&x)[4], bool forward) {
  static_assert(D == 64 || D == 128);
  constexpr FrameSigns<D> kSigns;
  constexpr float kNorm = D == 128 ? 0.08838834764831845f : 0.125f;  // D^-1/2
  const uint32_t lane = part_of_row<D>();
  const uint32_t low = lane < 8 ? kSigns.words[0] : kSigns.words[1], high = lane < 24 ? kSigns.words[2] : kSigns.words[3];
  const uint32_t signs = (lane < 16 ? low : high) >> (lane % 8 * 4);
  const auto scale = [&] {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] *= signs >> e & 1u ? -kNorm : kNorm;
  };
  if (forward) scale();
  const float a = x[0] + x[1], b = x[0] - x[1], c = x[2] + x[3], d = x[2] - x[3];
  x[0] = a + c, x[1] = b + d, x[2] = a - c, x[3] = b - d;
#pragma unroll
  for (uint32_t far = 1; far < D / 4; far *= 2) {
    const float own = lane & far ? -1.0f : 1.0f;
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = fmaf(x[e], own, __shfl_xor_sync(~0u, x[e], far));
  }
  if (!forward) scale();
}

// A new maximum for columns 2t and 2t+1, of all lanes that have them.
template <uint32_t D>
TIERKV_DEVICE void raise_top(WarpState<D>& state, float x0, float x1) {
#pragma unroll
  for (int d = 4; d < 32; d *= 2) {
    x0 = fmaxf(x0, __shfl_xor_sync(~0u, x0, d));
    x1 = fmaxf(x1, __shfl_xor_sync(~0u, x1, d));
  }
  x0 = fmaxf(x0, state.top0), x1 = fmaxf(x1, state.top1);
  state.shrink(power2(state.top0 - x0), power2(state.top1 - x1));
  state.top0 = x0, state.top1 = x1;
}

// Scores of 64 tokens become weights times 2^up in shared memory. A score is s·scale + base: one scale for all (`scales` 0), or one
// a token, tile after tile at `scales` in shared memory. `mine`: this lane's columns count.
template <bool kByToken, uint32_t D>
TIERKV_DEVICE void weigh_half(WarpState<D>& state, float (&s)[4][4], float scale, uint32_t scales, float base0, float base1,
                              bool mine, float up, uint32_t weights) {
  const uint32_t lane = threadIdx.x % 32;
  float x0 = -INFINITY, x1 = -INFINITY;
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
    if constexpr (kByToken) {
      const float2 by = load2f(scales + tile * 64 + lane / 4 * 8);
      s[tile][0] *= by.x, s[tile][1] *= by.x, s[tile][2] *= by.y, s[tile][3] *= by.y;
    }
    x0 = fmaxf(x0, fmaxf(s[tile][0], s[tile][2]));
    x1 = fmaxf(x1, fmaxf(s[tile][1], s[tile][3]));
  }
  x0 = mine ? fmaf(x0, scale, base0) : -INFINITY, x1 = mine ? fmaf(x1, scale, base1) : -INFINITY;
  if (__any_sync(~0u, x0 > state.top0 + kPatience || x1 > state.top1 + kPatience)) raise_top(state, x0, x1);
  const float n0 = mine ? base0 - state.top0 + up : -INFINITY, n1 = mine ? base1 - state.top1 + up : -INFINITY;
  const uint32_t to = weights + lane / 8 * 128 + ((lane % 8 + 2 * (lane / 16)) % 8) * 16;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    uint32_t p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* x = s[2 * j + i / 2] + 2 * (i & 1);
      p[i] = pack_halves(power2(fmaf(x[0], scale, n0)), power2(fmaf(x[1], scale, n1)));
    }
    store_transposed((to + j * 512) ^ (j * 64), p[0], p[1], p[2], p[3]);
  }
}

// Levels of four coded scales (meta.h), a lane's.
TIERKV_DEVICE void log8_levels(float top, uint32_t codes, float (&out)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t code = codes >> (8 * i) & 255u;
    out[i] = code == 0 ? 0.0f : top * power2(static_cast<float>(code) * 0.03125f - 7.96875f);
  }
}

// Scales and offsets of tokens 4·lane .. 4·lane+3 of a block whose metadata lies at `meta` in shared memory: meta_entry() of
// reading.h, four at a time. Of 64 tokens the upper lanes have what the lower ones have.
template <uint32_t kTokens = kTileRows>
TIERKV_DEVICE void load_four(const MetaTerms& terms, uint32_t meta, float (&scale)[4], float (&offset)[4]) {
  const uint32_t lane = threadIdx.x % (kTokens / 4), run = lane / 16, word = lane % 16 * 4;
  if (terms.kind == quant::MetaKind::f16_pair) {
    const uint2 s = load2(meta + lane * 8), o = load2(meta + 2 * kTokens + lane * 8);
    const float2 a = halves_of(s.x), b = halves_of(s.y), c = halves_of(o.x), d = halves_of(o.y);
    scale[0] = a.x, scale[1] = a.y, scale[2] = b.x, scale[3] = b.y;
    offset[0] = c.x, offset[1] = c.y, offset[2] = d.x, offset[3] = d.y;
  } else if (terms.kind == quant::MetaKind::log8_scale) {
    log8_levels(load1f(meta), load1(meta + 4 + lane * 4), scale);
#pragma unroll
    for (int i = 0; i < 4; ++i) offset[i] = -terms.zero * scale[i];
  } else if (terms.kind == quant::MetaKind::log8_pair) {
    const uint32_t at = meta + run * 140, codes = load1(at + 76 + word);
    const float low = load1f(at + 4), step = load1f(at + 8);
    log8_levels(load1f(at), load1(at + 12 + word), scale);
#pragma unroll
    for (int i = 0; i < 4; ++i) offset[i] = fmaf(step, static_cast<float>(codes >> (8 * i) & 255u), low);
  } else {  // log4_pair
    const uint32_t at = meta + run * 80, codes = load1(at + 16 + word);
    const float top = load1f(at), ratio = __log2f(load1f(at + 4)), low = load1f(at + 8), step = load1f(at + 12);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t code = codes >> (8 * i) & 15u;
      scale[i] = code == 0 ? 0.0f : top * power2(ratio * static_cast<float>(15 - code));
      offset[i] = fmaf(step, static_cast<float>(codes >> (8 * i + 4) & 15u), low);
    }
  }
}

// The grid of a block's values as halves in the order of operands: entries (0, 2) and (1, 3) of every four. They are in units that
// keep them far from both ends of a half; a block that needs a larger unit brings the sums along.
template <uint32_t kTokens = kTileRows, uint32_t D>
TIERKV_DEVICE void load_value_grid(WarpState<D>& state, const MetaTerms& terms, uint32_t meta, uint32_t grid) {
  const uint32_t lane = threadIdx.x % 32;
  float scale[4], offset[4];
  load_four<kTokens>(terms, meta, scale, offset);
  float most = fmaxf(fmaxf(scale[0], scale[1]), fmaxf(scale[2], scale[3]));
  if (__any_sync(~0u, most > 8.0f * state.unit)) {
#pragma unroll
    for (int d = 1; d < 32; d *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    const float unit = exp2f(ceilf(log2f(most))), change = state.unit / unit;
    const float weights0 = state.rows[0], weights1 = state.rows[1];
    state.shrink(change, change);
    if (lane / 4 == 1) state.rows[0] = weights0, state.rows[1] = weights1;  // sums of weights have no unit
    state.unit = unit;
    state.down = 1.0f / unit;
  }
  const float down = state.down;
  store2(grid + lane * 8, pack_halves(scale[0] * down, scale[2] * down), pack_halves(scale[1] * down, scale[3] * down));
  store2(grid + 256 + lane * 8, pack_halves(offset[0] * down, offset[2] * down), pack_halves(offset[1] * down, offset[3] * down));
}

template <int B, uint32_t D, uint32_t kTokens = kTileRows>
struct ValueFormat {
  static constexpr int kWords = B == 4 ? 2 : 1;                       // chunks of tokens a lane takes of a half
  static constexpr int kFields = B == 4 ? 2 : 4;                      // of a byte
  static constexpr int kStep = B == 4 ? 4 : 2;                        // bits between fields
  static constexpr int kTop = B == 4 ? 4 : 6;                         // the highest field's place
  static constexpr uint32_t kTileBytes = (B == 4 ? 8 : 4) * kTokens;  // 16 channels of the first plane
  static constexpr uint32_t kPlane = kTileBytes * (D / 16);           // 3 bits: where the plane of single bits begins
};

// Two codes of a half each, at their places.
template <int B>
TIERKV_DEVICE uint32_t codes(uint32_t word, uint32_t single, int f) {
  if constexpr (B == 4) return word & 0x000F000Fu << (4 * f);
  if constexpr (B == 2) return word & 0x00030003u << (2 * f);
  return (word << 1 & 0x00060006u << (2 * f)) | (single << f & 0x00010001u << (2 * f));
}

// Adds the weighted values of 64 tokens, and of up to four better rows (better.h) whose halves lie at `better` and whose weights
// are in `better_weights`, as an operand.
template <int B, bool kBetter = false, uint32_t kTokens = kTileRows, uint32_t D>
TIERKV_DEVICE void add_value_half(WarpState<D>& state, uint32_t values, uint32_t grid, uint32_t weights, int half,
                                  uint32_t better = 0, uint32_t better_weights = 0) {
  using F = ValueFormat<B, D, kTokens>;
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint32_t p[4][2];
#pragma unroll
  for (int h = 0; h < F::kWords; ++h) {
    const uint32_t chunk = t + 4 * h;
    if constexpr (B == 4) {
      const uint32_t at = weights + chunk / 2 * 256 + (g + 2 * (chunk / 2)) % 8 * 16 + chunk % 2 * 8;
      const uint2 even = load2(at), odd = load2(at + 128);
      p[2 * h][0] = even.x, p[2 * h][1] = odd.x, p[2 * h + 1][0] = even.y, p[2 * h + 1][1] = odd.y;
    } else {
      const uint32_t at = weights + chunk * 256 + (g + 2 * chunk) % 8 * 16;
      const uint4 even = load4(at), odd = load4(at + 128);
      p[0][0] = even.x, p[0][1] = odd.x, p[1][0] = even.y, p[1][1] = odd.y;
      p[2][0] = even.z, p[2][1] = odd.z, p[3][0] = even.w, p[3][1] = odd.w;
    }
  }
  float rows[4] = {};
#pragma unroll
  for (int h = 0; h < F::kWords; ++h) {
    uint32_t scale[2 * F::kFields], offset[2 * F::kFields];
    const uint32_t at = grid + (16 * half + (B == 4 ? 2 : 4) * (t + 4 * h)) * 8;
#pragma unroll
    for (int i = 0; i < F::kFields / 2; ++i) {
      const uint4 s = load4(at + 16 * i), o = load4(at + 256 + 16 * i);
      scale[4 * i] = s.x, scale[4 * i + 1] = s.y, scale[4 * i + 2] = s.z, scale[4 * i + 3] = s.w;
      offset[4 * i] = o.x, offset[4 * i + 1] = o.y, offset[4 * i + 2] = o.z, offset[4 * i + 3] = o.w;
    }
#pragma unroll
    for (int f = 0; f < F::kFields; ++f) {
      const int k = h * F::kFields + f;
      const uint32_t down = (0x3C00u - 0x400u * F::kStep * f) * 0x10001u;  // 2^-p
      const uint32_t other = g == 1 ? 0x3C003C00u : 0u;
      multiply(rows, g == 0 ? offset[2 * f] : other, 0, g == 0 ? offset[2 * f + 1] : other, 0, p[k][0], p[k][1]);
      p[k][0] = times(p[k][0], times(scale[2 * f], down));
      p[k][1] = times(p[k][1], times(scale[2 * f + 1], down));
    }
  }
  state.rows[0] += rows[0], state.rows[1] += rows[1];
  const uint32_t first = values + g / 4 * F::kTileBytes + t * 64 + g % 4 * 16;
#pragma unroll
  for (uint32_t w = 0; w < D / 32; ++w) {
    float c[2][4] = {};
    if constexpr (kBetter) {
      const uint4 more = load4(better + t % 2 * (4 * D) + w * 128 + g * 16);
      multiply8(c[0], more.x, more.y, better_weights);
      multiply8(c[1], more.z, more.w, better_weights);
    }
#pragma unroll
    for (int h = 0; h < F::kWords; ++h) {
      const uint4 v = load4(first + w * 2 * F::kTileBytes + (half * F::kWords + h) * 256);
      uint4 u = {0, 0, 0, 0};
      if constexpr (B == 3) {  // a chunk of single bits is 32 tokens: half of it is this lane's
        u = load4(values + F::kPlane + (2 * w + g / 4) * 256 + (half * 2 + t / 2) * 64 + g % 4 * 16);
        const uint32_t skip = t % 2 * 4;
        u.x >>= skip, u.y >>= skip, u.z >>= skip, u.w >>= skip;
      }
#pragma unroll
      for (int f = 0; f < F::kFields; ++f) {
        const int k = h * F::kFields + f;
        multiply(c[0], codes<B>(v.x, u.x, f), codes<B>(v.y, u.y, f), codes<B>(v.x >> 8, u.x >> 8, f),
                 codes<B>(v.y >> 8, u.y >> 8, f), p[k][0], p[k][1]);
        multiply(c[1], codes<B>(v.z, u.z, f), codes<B>(v.w, u.w, f), codes<B>(v.z >> 8, u.z >> 8, f),
                 codes<B>(v.w >> 8, u.w >> 8, f), p[k][0], p[k][1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) state.sums[w][i / 4][i % 4] += c[i / 4][i % 4];
  }
}

// The warps of a thread block together, in the plain frame, to where the merge looks. `memory`: all of shared memory, free by now.
// `warps` took part, kWarps at most; `up`: the power of two that weights carry. Folded: columns c and c + 4 are one head.
template <uint32_t D>
struct EndShape {
  static constexpr uint32_t kRow = D + 4, kWarp = 8 * kRow;  // floats of a head, padded against bank conflicts; of a warp
};
inline constexpr uint32_t end_bytes(uint32_t warps, uint32_t dim) { return (warps * (8 * (dim + 4) + 8 + 8) + 8 * dim) * 4; }

// Every warp's sums on one scale, in the order of channels: [warp][column][channel]; and its sums of weights.
template <uint32_t D>
TIERKV_DEVICE void put_sums(const WarpState<D>& state, float all0, float all1, float up, float* values, float* totals) {
  using S = EndShape<D>;
  const uint32_t thread = thread_now(), lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
  const float offset0 = __shfl_sync(~0u, state.rows[0], t), offset1 = __shfl_sync(~0u, state.rows[1], t);
  const float total0 = __shfl_sync(~0u, state.rows[0], 4 + t), total1 = __shfl_sync(~0u, state.rows[1], 4 + t);
  const float f0 = power2(state.top0 - all0 - up), f1 = power2(state.top1 - all1 - up);
  if (g == 0) totals[warp * 8 + 2 * t] = total0 * f0, totals[warp * 8 + 2 * t + 1] = total1 * f1;
  const float u0 = f0 * state.unit, u1 = f1 * state.unit;
#pragma unroll
  for (uint32_t w = 0; w < D / 32; ++w) {
    const float(&x)[4] = state.sums[w][0];
    const float(&y)[4] = state.sums[w][1];
    float* const at = values + warp * S::kWarp + 2 * t * S::kRow + 32 * w + 4 * g;
    *reinterpret_cast<float4*>(at) = {(x[0] * kCode + offset0) * u0, (x[2] * kCode + offset0) * u0, (y[0] * kCode + offset0) * u0,
                                      (y[2] * kCode + offset0) * u0};
    *reinterpret_cast<float4*>(at + S::kRow) = {(x[1] * kCode + offset1) * u1, (x[3] * kCode + offset1) * u1,
                                                (y[1] * kCode + offset1) * u1, (y[3] * kCode + offset1) * u1};
  }
}

template <uint32_t kWarps = kThreads / 32, uint32_t D>
TIERKV_DEVICE void end_segment(const Launch& launch, const SegmentDesc& segment, WarpState<D>& state, uint32_t warps, float up,
                               bool fold, bool hadamard, uint8_t* memory) {
  using S = EndShape<D>;
  const uint32_t thread = thread_now(), lane = thread % 32, warp = thread / 32, t = lane % 4;
  auto* values = reinterpret_cast<float*>(memory);
  float* tops = values + kWarps * S::kWarp;  // [warp][8]
  float* totals = tops + kWarps * 8;
  float* rows = totals + kWarps * 8;  // [head][D]: where they have to leave the Hadamard frame
  __syncthreads();
  if (lane < 4 && warp < warps) tops[warp * 8 + 2 * t] = state.top0, tops[warp * 8 + 2 * t + 1] = state.top1;
  __syncthreads();
  // Lane l has the maxima of warps l / 4, l / 4 + 8, ... for columns 2t and 2t + 1.
  float all0 = -INFINITY, all1 = -INFINITY;
#pragma unroll
  for (uint32_t w = 0; w < kWarps; w += 8) {
    const float2 x = *reinterpret_cast<const float2*>(tops + min(w + lane / 4, warps - 1) * 8 + 2 * t);
    all0 = fmaxf(all0, x.x), all1 = fmaxf(all1, x.y);
  }
#pragma unroll
  for (int d = 4; d < 32; d *= 2) {
    all0 = fmaxf(all0, __shfl_xor_sync(~0u, all0, d)), all1 = fmaxf(all1, __shfl_xor_sync(~0u, all1, d));
  }
  if (fold) all0 = fmaxf(all0, __shfl_xor_sync(~0u, all0, 2)), all1 = fmaxf(all1, __shfl_xor_sync(~0u, all1, 2));
  if (warp < warps) put_sums(state, all0, all1, up, values, totals);
  __syncthreads();
  const size_t first = static_cast<size_t>(segment.partial) * launch.group;
  float* const out = launch.partial_out + first * D;
  for (uint32_t i = thread; i < launch.group * D; i += blockDim.x) {
    const float* const from = values + i / D * S::kRow + i % D;
    float x = 0.0f;
#pragma unroll 8
    for (uint32_t w = 0; w < warps; ++w) {
      x += from[w * S::kWarp];
      if (fold) x += from[w * S::kWarp + 4 * S::kRow];
    }
    if (hadamard) rows[i] = x;
    else out[i] = x;
  }
  // What every column rose to is known to the lanes that have it: head 2t or 2t + 1.
  if (warp == 0) {
    float sum0 = 0.0f, sum1 = 0.0f;
#pragma unroll
    for (uint32_t w = 0; w < kWarps; w += 8) {
      if (w + lane / 4 >= warps) break;
      const float2 x = *reinterpret_cast<const float2*>(totals + (w + lane / 4) * 8 + 2 * t);
      sum0 += x.x, sum1 += x.y;
    }
#pragma unroll
    for (int d = 4; d < 32; d *= 2) sum0 += __shfl_xor_sync(~0u, sum0, d), sum1 += __shfl_xor_sync(~0u, sum1, d);
    if (fold) sum0 += __shfl_xor_sync(~0u, sum0, 2), sum1 += __shfl_xor_sync(~0u, sum1, 2);
    if (lane < 4 && 2 * t < launch.group) launch.partial_top[first + 2 * t] = all0, launch.partial_sum[first + 2 * t] = sum0;
    if (lane < 4 && 2 * t + 1 < launch.group)
      launch.partial_top[first + 2 * t + 1] = all1, launch.partial_sum[first + 2 * t + 1] = sum1;
  }
  if (!hadamard) return;
  __syncthreads();
  for (uint32_t row = warp; row < launch.group; row += blockDim.x / 32) {
    const float4 y = *reinterpret_cast<const float4*>(rows + row * D + part_of_row<D>() * 4);
    float x[4] = {y.x, y.y, y.z, y.w};
    turn_frame<D>(x, false);
    if (lane < D / 4) reinterpret_cast<float4*>(out + row * D)[lane] = {x[0], x[1], x[2], x[3]};
  }
}

}  // namespace tierkv::cuda
