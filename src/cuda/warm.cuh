// warm.cuh — whole blocks of 64 tokens of 4 bits, as warm tiers have them: a warp takes one at a time with the products of
// fast.cuh, and the four warps of a thread block take turns. Keys of one scale a token in the Hadamard frame (rot's and even's),
// values of one scale a token; heads of D channels. What is not so is staged (staged.cuh).
//
// A block is read once, straight out of its codes, where the staged path writes every number to shared memory as a half before it
// is used. The query is made ready by each warp for its own block: even's channels differ from block to block.
#pragma once

#include "cuda/fast.cuh"

namespace tierkv::cuda {

template <uint32_t D>
struct WarmShape {
  static constexpr uint32_t kCodes = kWarmTokens * D / 2, kTile = kCodes / 4;
  static constexpr uint32_t kKeySlot = kCodes + 352, kValueSlot = kCodes + 256;  // scales, means and even's exponent; the grid
  static constexpr uint32_t kQuery = D / 16 * 32 * 8, kScales = kWarmTokens * 4;
  // Of a warp, and first what wants whole lines of banks.
  static constexpr uint32_t kWarp = (kWeightBytes + kGridBytes + kQuery + kScales + kKeySlot + kValueSlot + 127) / 128 * 128;
  static constexpr uint32_t kPlain = 8 * D * 4;  // of all warps: the heads' queries
  static constexpr uint32_t kBytes = kWarmWarps * kWarp + kPlain;
  static_assert(kBytes >= end_bytes(kWarmWarps, D));
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// What a block says of part_of_row()'s channels: what even divided them by, and their means.
struct WarmChannels {
  float factor[4], mean[4];
};
template <uint32_t D>
TIERKV_DEVICE WarmChannels warm_channels(const quant::SideLayout& key, uint32_t keys) {
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

// The heads' queries in the terms of a block's keys, as operands at `query`: [step of 16 channels][lane], step = chunk half · 2 +
// field. A field that lies four bits higher has a sixteenth. Returns what scores of columns 2t and 2t+1 begin with.
template <uint32_t D>
TIERKV_DEVICE float2 load_warm_query(const quant::SideLayout& key, uint32_t plain, uint32_t group, uint32_t keys, uint32_t query) {
  const uint32_t lane = threadIdx.x % 32, t = lane % 4;
  const WarmChannels own = warm_channels<D>(key, keys);
  const float down = lane % 2 == 0 ? 1.0f : 0.0625f;
  const uint32_t to = query + ((lane / 8 * 2 + lane % 2) * 32 + lane / 2 % 4) * 8;  // of head 0
  float base = 0.0f;                                                                // of head `lane`
#pragma unroll 2
  for (uint32_t head = 0; head < group; ++head) {
    const uint4 raw = load4(plain + head * (D * 4) + part_of_row<D>() * 16);
    const float q[4] = {__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z), __uint_as_float(raw.w)};
    float x[4], sum = 0.0f;
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = q[e] * own.factor[e];
    if (key.hadamard) turn_frame<D>(x, true);
#pragma unroll
    for (int e = 0; e < 4; ++e) sum = fmaf(own.mean[e], key.even ? q[e] : x[e], sum);  // even's means lie outside of the frame
#pragma unroll
    for (uint32_t d = 1; d < D / 4; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (lane == head) base = sum;
    if (lane < D / 4) store2(to + head * 32, pack_halves(x[0] * down, x[2] * down), pack_halves(x[1] * down, x[3] * down));
  }
  return {__shfl_sync(~0u, base, 2 * t), __shfl_sync(~0u, base, 2 * t + 1)};
}

// Scores of all tokens, in units of 2^-24 of a token's scale: products of codes, less the middle of the codes.
template <uint32_t D>
TIERKV_DEVICE void warm_scores(uint32_t keys, uint32_t query, float zero, float (&s)[4][4]) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint32_t b[D / 16][2];
  float sums[4] = {};
#pragma unroll
  for (uint32_t k = 0; k < D / 16; ++k) {
    const uint2 q = load2(query + (k * 32 + lane) * 8);
    b[k][0] = q.x, b[k][1] = q.y;
    // Of the query as the operands have it, so that the middle is taken out exactly: a field's sixteenth is sixteen times there.
    const uint32_t ones = g == 0 ? (k % 2 == 0 ? 0x3C003C00u : 0x4C004C00u) : 0u;
    multiply(sums, ones, 0, ones, 0, q.x, q.y);
  }
  const float begin0 = -zero / kCode * __shfl_sync(~0u, sums[0], t), begin1 = -zero / kCode * __shfl_sync(~0u, sums[1], t);
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) s[tile][0] = s[tile][2] = begin0, s[tile][1] = s[tile][3] = begin1;
#pragma unroll
  for (uint32_t h = 0; h < D / 32; ++h) {
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      const uint2 w = load2(keys + t * 64 + g * 8 + tile * WarmShape<D>::kTile + h * 256);
#pragma unroll
      for (int f = 0; f < 2; ++f) {
        multiply(s[tile], codes<4>(w.x, 0, f), codes<4>(w.y, 0, f), codes<4>(w.x >> 8, 0, f), codes<4>(w.y >> 8, 0, f),
                 b[2 * h + f][0], b[2 * h + f][1]);
      }
    }
  }
}

// A warp's places in shared memory, and how it has its blocks copied there.
template <uint32_t D>
struct WarmWarp {
  uint32_t weights, grid, query, scales, keys, values;
  uint32_t key_bytes, value_bytes;
  WarpCopies copies;

  TIERKV_DEVICE WarmWarp(const CodecDesc& codec, uint8_t* memory, uint64_t (&barriers)[2])
      : copies{shared_address(&barriers[0]), shared_address(&barriers[1]), 0} {
    weights = shared_address(memory), grid = weights + kWeightBytes, query = grid + kGridBytes;
    scales = query + WarmShape<D>::kQuery, keys = scales + WarmShape<D>::kScales, values = keys + WarmShape<D>::kKeySlot;
    key_bytes = padded_bytes(codec.key.bytes), value_bytes = padded_bytes(codec.value.bytes);
  }
};

// The warp's blocks of a segment, one after the other: the next one's keys are copied while this one's values are read.
template <uint32_t D>
TIERKV_DEVICE void attend_warm_blocks(const Launch& launch, const SegmentDesc& segment, const CodecDesc& codec, uint32_t plain,
                                      WarmWarp<D>& own, WarpState<D>& state) {
  using F = ValueFormat<4, D, kWarmTokens>;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const ViewDesc* const views = launch.views + segment.first_view;
#pragma unroll 1
  for (uint32_t v = warp; v < segment.views; v += kWarmWarps, own.copies.phase ^= 1) {
    const bool more = v + kWarmWarps < segment.views;
    // Read now, needed when the slots are free: the addresses must not be waited for then.
    const uint8_t* const next_keys = views[more ? v + kWarmWarps : v].keys;
    const uint8_t* const next_values = views[more ? v + kWarmWarps : v].values;
    barrier_wait(own.copies.keys, own.copies.phase);
    const float2 base = load_warm_query<D>(codec.key, plain, launch.group, own.keys, own.query);
    if (const uint32_t meta = own.keys + codec.key.meta_at; lane < kWarmTokens / 4) {
      float s[4];
      log8_levels(kCode * load1f(meta), load1(meta + 4 + lane * 4), s);
      store4f(own.scales + lane * 16, s[0], s[1], s[2], s[3]);
    }
    __syncwarp();
    float s[4][4];
    warm_scores<D>(own.keys, own.query, codec.key.zero, s);
    weigh_half<true>(state, s, 1.0f, own.scales, base.x, base.y, true, static_cast<float>(F::kTop), own.weights);
    __syncwarp();
    if (more && lane == 0) copy_in(own.keys, next_keys, own.key_bytes, own.copies.keys);
    barrier_wait(own.copies.values, own.copies.phase);
    load_value_grid<kWarmTokens>(state, meta_terms(codec.value), own.values + codec.value.meta_at, own.grid);
    __syncwarp();
    add_value_half<4, false, kWarmTokens>(state, own.values, own.grid, own.weights, 0);
    __syncwarp();
    if (more && lane == 0) copy_in(own.values, next_values, own.value_bytes, own.copies.values);
  }
}

template <uint32_t D>
TIERKV_DEVICE void attend_warm(const Launch& launch, const SegmentDesc& segment, uint8_t* memory) {
  __shared__ uint64_t barriers[kWarmWarps][2];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const CodecDesc& codec = launch.codecs[segment.codec];
  WarmWarp<D> own(codec, memory + warp * WarmShape<D>::kWarp, barriers[warp]);
  if (warp < segment.views && lane == 0) {
    const ViewDesc& view = launch.views[segment.first_view + warp];
    barrier_init(own.copies.keys), barrier_init(own.copies.values);
    fence_copies();
    copy_in(own.keys, view.keys, own.key_bytes, own.copies.keys);
    copy_in(own.values, view.values, own.value_bytes, own.copies.values);
  }
  auto* const plain = reinterpret_cast<float4*>(memory + kWarmWarps * WarmShape<D>::kWarp);
  const float scale = launch.scale * kLog2E;
  for (uint32_t head = warp; head < launch.group; head += kWarmWarps) {
    const auto* const from = reinterpret_cast<const float4*>(launch.queries + (segment.first_row + head) * size_t{D});
    if (lane >= D / 4) break;
    const float4 q = __ldg(from + lane);
    plain[head * (D / 4) + lane] = {q.x * scale, q.y * scale, q.z * scale, q.w * scale};
  }
  // Columns of heads that are not there stay zeros: blocks write over the others.
  for (uint32_t i = lane; i < WarmShape<D>::kQuery / 8; i += 32) store2(own.query + i * 8, 0, 0);
  __syncthreads();
  WarpState<D> state;
  attend_warm_blocks(launch, segment, codec, shared_address(plain), own, state);
  if (warp < segment.views && lane == 0) barrier_end(own.copies.keys), barrier_end(own.copies.values);
  end_segment<kWarmWarps>(launch, segment, state, min(segment.views, kWarmWarps), 4.0f, false, codec.value.hadamard, memory);
}

#endif

}  // namespace tierkv::cuda
