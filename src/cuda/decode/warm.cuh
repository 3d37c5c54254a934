// warm.cuh — whole blocks of 64 tokens of 4 bits, as warm tiers have them, straight out of their codes: beside.cuh's four warps
// take one together. Keys of one scale a token in the Hadamard frame (rot's and even's), values of one scale a token; heads of D
// channels. What is not so is staged (staged.cuh).
//
// Query:   in the terms of each block's keys, a head a warp: even's channels differ from block to block.
// Values:  a token's scale is in its weight, in units of the block's largest; its offset is measured in the rounded weight that the
//          codes meet, unless codes hardly count beside it: a channel far from a token's largest is often offset and code that
//          cancel.
// Copies:  of the next block, while this one is read.
#pragma once

#include "cuda/decode/beside.cuh"

namespace tierkv::cuda {

template <uint32_t D>
struct WarmShape {
  using S = BesideShape<D>;
  static constexpr uint32_t kCodes = kWarmTokens * D / 2, kTile = kCodes / 4;
  static constexpr uint32_t kKeySlot = kCodes + 352, kValueSlot = kCodes + 256;      // scales, means and even's exponent; the grid
  static constexpr uint32_t kScales = S::kSums, kTerms = kScales + kWarmTokens * 4;  // of keys; of values, twice
  static constexpr uint32_t kBase = S::kHeads, kMiddle = kBase + 32, kUnits = kMiddle + 32;
  static constexpr uint32_t kSlot = kKeySlot + kValueSlot, kBytes = S::kSlots + 2 * kSlot;
  static_assert(kTerms + 2 * kWarmTokens * 16 <= S::kSlots && S::kEndBytes + 32 <= 2 * kSlot);
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// What blocks of a codec have in common, read once.
struct WarmCodec {
  uint32_t key_bytes, value_bytes, key_meta, value_meta, mean_at;
  float zero;
  MetaTerms values;
  bool even, hadamard;

  TIERKV_DEVICE explicit WarmCodec(const CodecDesc& codec)
      : key_bytes(padded_bytes(codec.key.bytes)),
        value_bytes(padded_bytes(codec.value.bytes)),
        key_meta(codec.key.meta_at),
        value_meta(codec.value.meta_at),
        mean_at(codec.key.mean_at),
        zero(codec.key.zero),
        values(meta_terms(codec.value)),
        even(codec.key.even),
        hadamard(codec.key.hadamard) {}
};

// What a block says of part_of_row()'s channels: what even divided them by, and their means.
struct WarmChannels {
  float factor[4], mean[4];
};
template <uint32_t D>
TIERKV_DEVICE WarmChannels warm_channels(const WarmCodec& key, uint32_t keys) {
  WarmChannels own{{1.0f, 1.0f, 1.0f, 1.0f}, {}};
  if (key.mean_at == 0) return own;
  const uint32_t at = keys + key.mean_at + part_of_row<D>() * 8;
  const uint32_t words[2] = {load1(at), load1(at + 4)};
  const auto base = static_cast<int16_t>(key.even ? load1(keys + key.mean_at + 2 * D) & 0xFFFFu : 0u);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const uint32_t word = words[e / 2] >> (16 * (e % 2)) & 0xFFFFu;
    own.mean[e] = half_value(static_cast<uint16_t>(key.even ? word & 0xFFF8u : word));
    if (key.even) own.factor[e] = root_power(base + static_cast<int>(word & 7u));
  }
  return own;
}

// A head's query in the terms of a block's keys, as operands: [step of 16 channels][lane], step = chunk half · 2 + field. A field
// that lies four bits higher has a sixteenth. And what the head's scores begin with: the means' part, and the sum of the operands,
// which the middle of the codes is taken out by.
template <uint32_t D>
TIERKV_DEVICE void load_warm_query(const WarmCodec& key, const WarmChannels& own, const float (&q)[4], uint32_t head,
                                   uint32_t memory) {
  using W = WarmShape<D>;
  const uint32_t lane = threadIdx.x % 32;
  const float down = lane % 2 == 0 ? 1.0f : 0.0625f, up = lane % 2 == 0 ? 1.0f : 16.0f;
  float x[4], base = 0.0f;
#pragma unroll
  for (int e = 0; e < 4; ++e) x[e] = q[e] * own.factor[e];
  if (key.hadamard) turn_frame<D>(x, true);
#pragma unroll
  for (int e = 0; e < 4; ++e) base = fmaf(own.mean[e], key.even ? q[e] : x[e], base);  // even's means lie outside of the frame
  const uint32_t u = pack_halves(x[0] * down, x[2] * down), v = pack_halves(x[1] * down, x[3] * down);
  const float2 a = halves_of(u), b = halves_of(v);
  float middle = ((a.x + a.y) + (b.x + b.y)) * up;
#pragma unroll
  for (uint32_t d = 1; d < D / 4; d *= 2) base += __shfl_xor_sync(~0u, base, d), middle += __shfl_xor_sync(~0u, middle, d);
  const uint32_t to = memory + W::S::kQuery + ((lane / 8 * 2 + lane % 2) * 32 + lane / 2 % 4) * 8 + head * 32;
  if (lane < D / 4) store2(to, u, v);
  if (lane == 0)
    store1(memory + W::kBase + head * 4, __float_as_uint(base)), store1(memory + W::kMiddle + head * 4, __float_as_uint(middle));
}

// Scales of the keys' tokens, in the units of codes.
TIERKV_DEVICE void load_key_scales(uint32_t meta, uint32_t scales) {
  const uint32_t lane = threadIdx.x % 32;
  if (lane >= kWarmTokens / 4) return;
  float s[4];
  log8_levels(kCode * load1f(meta), load1(meta + 4 + lane * 4), s);
  store4f(scales + lane * 16, s[0], s[1], s[2], s[3]);
}

// Of the values' tokens {scale, offset in weights, offset in what weights were before}; returns their unit. A lane has four tokens,
// and the upper four of every eight lie four bits higher.
TIERKV_DEVICE float load_value_terms(const MetaTerms& meta, uint32_t at, uint32_t terms) {
  constexpr float kMost = 64.0f;
  const uint32_t lane = threadIdx.x % 32;
  float scale[4], offset[4];
  load_four<kWarmTokens>(meta, at, scale, offset);
  float most = fmaxf(fmaxf(scale[0], scale[1]), fmaxf(scale[2], scale[3]));
#pragma unroll
  for (int d = 1; d < 16; d *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
  const uint32_t exponent = min(max(__float_as_uint(most) >> 23, 27u), 226u);
  const float unit = __uint_as_float((exponent + 1) << 23), down = __uint_as_float((253 - exponent) << 23);
  const float place = lane % 2 == 0 ? down : down * 0.0625f;
  if (lane >= kWarmTokens / 4) return unit;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float own = scale[i] * place;
    const bool counts = own != 0.0f && fabsf(offset[i]) <= kMost * scale[i];
    store4f(terms + (lane * 4 + i) * 16, own, counts ? offset[i] * reciprocal(own) : 0.0f, counts ? 0.0f : offset[i], 0.0f);
  }
  return unit;
}

// Scores of this warp's tile.
template <uint32_t D>
TIERKV_DEVICE void warm_scores(uint32_t memory, uint32_t keys, float zero, float (&s)[4]) {
  using W = WarmShape<D>;
  const uint32_t lane = threadIdx.x % 32, tile = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const float2 base = load2f(memory + W::kBase + t * 8), middle = load2f(memory + W::kMiddle + t * 8);
  const float2 by = load2f(memory + W::kScales + tile * 64 + g * 8);
  float more[4] = {};
  s[0] = s[2] = -zero / kCode * middle.x, s[1] = s[3] = -zero / kCode * middle.y;
#pragma unroll
  for (uint32_t h = 0; h < D / 32; ++h) {
    const uint2 w = load2(keys + t * 64 + g * 8 + tile * W::kTile + h * 256);
#pragma unroll
    for (int f = 0; f < 2; ++f) {
      const uint2 q = load2(memory + W::S::kQuery + ((2 * h + f) * 32 + lane) * 8);
      multiply(f == 0 ? s : more, codes<4>(w.x, 0, f), codes<4>(w.y, 0, f), codes<4>(w.x >> 8, 0, f), codes<4>(w.y >> 8, 0, f), q.x,
               q.y);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) s[i] += more[i];
  s[0] = fmaf(s[0], by.x, base.x), s[1] = fmaf(s[1], by.x, base.y), s[2] = fmaf(s[2], by.y, base.x),
  s[3] = fmaf(s[3], by.y, base.y);
}

// They become weights, and what tokens' offsets and weights add up to is added.
TIERKV_DEVICE void weigh_warm(BesideState& state, const float (&s)[4], uint32_t terms, uint32_t weights) {
  const uint32_t lane = threadIdx.x % 32, at = terms + (threadIdx.x / 32 * 16 + lane / 4 * 2) * 16;
  const float n0 = kBesideUp - state.top0, n1 = kBesideUp - state.top1;
  const float p0 = power2(s[0] + n0), p1 = power2(s[1] + n1), p2 = power2(s[2] + n0), p3 = power2(s[3] + n1);
  const uint4 even = load4(at), odd = load4(at + 16);
  const float a = __uint_as_float(even.x), b = __uint_as_float(odd.x), ratio0 = __uint_as_float(even.y),
              ratio1 = __uint_as_float(odd.y), direct0 = __uint_as_float(even.z), direct1 = __uint_as_float(odd.z);
  const uint32_t w0 = pack_halves(p0 * a, p1 * a), w1 = pack_halves(p2 * b, p3 * b);
  const float2 x = halves_of(w0), y = halves_of(w1);
  state.total0 += p0 + p2, state.total1 += p1 + p3;
  state.offset0 += fmaf(x.x, ratio0, p0 * direct0) + fmaf(y.x, ratio1, p2 * direct1);
  state.offset1 += fmaf(x.y, ratio0, p1 * direct0) + fmaf(y.y, ratio1, p3 * direct1);
  store_weights(weights, w0, w1);
}

// Adds this warp's channels.
template <uint32_t D>
TIERKV_DEVICE void add_warm_values(BesideState& state, uint32_t values, uint32_t weights, float unit) {
  using S = BesideShape<D>;
  using F = ValueFormat<4, D, kWarmTokens>;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const uint32_t first = values + (2 * (warp % S::kParts) + g / 4) * F::kTileBytes + t * 64 + g % 4 * 16;
  float c[2][4] = {};
#pragma unroll
  for (uint32_t i = 0; i < 2 / S::kSplit; ++i) {
    const uint32_t h = S::kSplit == 1 ? i : warp / S::kParts, chunk = t + 4 * h;
    const uint32_t at = weights + chunk / 2 * 256 + (g + 2 * (chunk / 2)) % 8 * 16 + chunk % 2 * 8;
    const uint2 even = load2(at), odd = load2(at + 128);
    const uint4 v = load4(first + h * 256);
#pragma unroll
    for (int f = 0; f < 2; ++f) {
      const uint32_t p0 = f == 0 ? even.x : even.y, p1 = f == 0 ? odd.x : odd.y;
      multiply(c[0], codes<4>(v.x, 0, f), codes<4>(v.y, 0, f), codes<4>(v.x >> 8, 0, f), codes<4>(v.y >> 8, 0, f), p0, p1);
      multiply(c[1], codes<4>(v.z, 0, f), codes<4>(v.w, 0, f), codes<4>(v.z >> 8, 0, f), codes<4>(v.w >> 8, 0, f), p0, p1);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) state.sums[i / 4][i % 4] = fmaf(c[i / 4][i % 4], unit, state.sums[i / 4][i % 4]);
}

template <uint32_t D>
TIERKV_DEVICE void attend_warm(const Launch& launch, const SegmentDesc& segment, uint8_t* shared) {
  using W = WarmShape<D>;
  __shared__ uint64_t barriers[2];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, memory = shared_address(shared);
  const WarmCodec codec(launch.codecs[segment.codec]);
  const ViewDesc* const views = launch.views + segment.first_view;
  const auto copy = [&](uint32_t v) {
    const uint32_t to = memory + W::S::kSlots + v % 2 * W::kSlot, barrier = shared_address(&barriers[v % 2]);
    expect_bytes(barrier, codec.key_bytes + codec.value_bytes);
    copy_more(to, views[v].keys, codec.key_bytes, barrier);
    copy_more(to + W::kKeySlot, views[v].values, codec.value_bytes, barrier);
  };
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&barriers[0])), barrier_init(shared_address(&barriers[1]));
    fence_copies();
    copy(0);
    if (segment.views > 1) copy(1);
  }
  // Heads warp and warp + 4.
  float query[2][4] = {};
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t head = warp + i * kBesideWarps;
    if (head >= launch.group) break;
    const float4 q =
        __ldg(reinterpret_cast<const float4*>(launch.queries + (segment.first_row + head) * size_t{D}) + part_of_row<D>());
    const float scale = launch.scale * kLog2E;
    query[i][0] = q.x * scale, query[i][1] = q.y * scale, query[i][2] = q.z * scale, query[i][3] = q.w * scale;
  }
  // Columns of heads that are not there stay zeros: blocks write over the others.
  for (uint32_t i = threadIdx.x; i < D / 16 * 32; i += kBesideThreads) store2(memory + W::S::kQuery + i * 8, 0, 0);
  if (threadIdx.x < 16) store1(memory + W::kBase + threadIdx.x * 4, 0);
  __syncthreads();
  BesideState state;
#pragma unroll 1
  for (uint32_t v = 0; v < segment.views; ++v) {
    const uint32_t keys = memory + W::S::kSlots + v % 2 * W::kSlot, values = keys + W::kKeySlot;
    const uint32_t terms = memory + W::kTerms + v % 2 * (kWarmTokens * 16), unit_at = memory + W::kUnits + v % 2 * 4;
    barrier_wait(shared_address(&barriers[v % 2]), v / 2 % 2);
    {
      const WarmChannels own = warm_channels<D>(codec, keys);
      if (warp < launch.group) load_warm_query<D>(codec, own, query[0], warp, memory);
      if (warp + kBesideWarps < launch.group) load_warm_query<D>(codec, own, query[1], warp + kBesideWarps, memory);
    }
    if (warp == 2) load_key_scales(keys + codec.key_meta, memory + W::kScales);
    if (warp == 3) {
      const float unit = load_value_terms(codec.values, values + codec.value_meta, terms);
      if (lane == 0) store1(unit_at, __float_as_uint(unit));
    }
    __syncthreads();
    // All are done with the block before: its place is free.
    if (v != 0 && v + 1 < segment.views && threadIdx.x == 0) copy(v + 1);
    float s[4];
    warm_scores<D>(memory, keys, codec.zero, s);
    share_tops(memory + W::S::kTops, s);
    __syncthreads();
    state.raise(memory + W::S::kTops);
    weigh_warm(state, s, terms, memory + W::S::kWeights);
    __syncthreads();
    add_warm_values<D>(state, values, memory + W::S::kWeights, load1f(unit_at));
  }
  end_beside<D>(launch, segment, 0, state, kCode, launch.codecs[segment.codec].value.hadamard, shared);
  if (threadIdx.x == 0) barrier_end(shared_address(&barriers[0])), barrier_end(shared_address(&barriers[1]));
}

#endif

}  // namespace tierkv::cuda
