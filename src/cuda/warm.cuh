// warm.cuh — whole blocks of 64 tokens of 4 bits, as warm tiers have them: a warp takes one from beginning to end with the products
// of fast.cuh, and up to four warps are a thread block. Keys of one scale a token in the Hadamard frame (rot's and even's), values
// of one scale a token; heads of 128 channels. What is not so is staged (staged.cuh).
//
// A block is read once, straight out of its codes, where the staged path writes every number to shared memory as a half before it
// is used. The query is made ready by each warp for its own block: even's channels differ from block to block.
#pragma once

#include "cuda/fast.cuh"

namespace tierkv::cuda {

struct WarmShape {
  static constexpr uint32_t kCodes = kWarmTokens * kTileRows / 2, kTile = kCodes / 4;
  static constexpr uint32_t kKeySlot = kCodes + 352, kValueSlot = kCodes + 256;  // scales, means and even's exponent; the grid
  static constexpr uint32_t kQuery = 8 * 32 * 8, kScales = kWarmTokens * 4;
  // Of a warp, and first what wants whole lines of banks.
  static constexpr uint32_t kWarp = (kWeightBytes + kGridBytes + kQuery + kScales + kKeySlot + kValueSlot + 127) / 128 * 128;
  static constexpr uint32_t kBytes = kWarmWarps * kWarp;
};
static_assert(WarmShape::kBytes >= end_bytes(kWarmWarps));

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// What a block says of channels 4·lane .. 4·lane+3: what even divided them by, and their means.
struct WarmChannels {
  float factor[4], mean[4];
};
TIERKV_DEVICE WarmChannels warm_channels(const quant::SideLayout& key, uint32_t keys) {
  WarmChannels own{{1.0f, 1.0f, 1.0f, 1.0f}, {}};
  if (key.mean_at == 0) return own;
  const uint32_t at = keys + key.mean_at + threadIdx.x % 32 * 8;
  const uint32_t words[2] = {load1(at), load1(at + 4)};
  const auto base = static_cast<int16_t>(key.even ? load1(keys + key.mean_at + 2 * kTileRows) & 0xFFFFu : 0u);
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
TIERKV_DEVICE float2 load_warm_query(const quant::SideLayout& key, const float4 (&plain)[8], uint32_t group, uint32_t keys,
                                     uint32_t query) {
  const uint32_t lane = threadIdx.x % 32, t = lane % 4;
  const WarmChannels own = warm_channels(key, keys);
  const float down = lane % 2 == 0 ? 1.0f : 0.0625f;
  const uint32_t to = query + ((lane / 8 * 2 + lane % 2) * 32 + lane / 2 % 4) * 8;  // of head 0
  float base = 0.0f;  // of head `lane`
#pragma unroll
  for (uint32_t head = 0; head < 8; ++head) {
    float x[4] = {plain[head].x * own.factor[0], plain[head].y * own.factor[1], plain[head].z * own.factor[2],
                  plain[head].w * own.factor[3]};
    float sum = 0.0f;
    if (head < group) {  // of no heads it is zeros
      // even's means lie outside of the frame, rot's inside.
      if (key.even)
        sum = own.mean[0] * plain[head].x + own.mean[1] * plain[head].y + own.mean[2] * plain[head].z + own.mean[3] * plain[head].w;
      if (key.hadamard) turn_frame(x, true);
      if (!key.even) sum = own.mean[0] * x[0] + own.mean[1] * x[1] + own.mean[2] * x[2] + own.mean[3] * x[3];
#pragma unroll
      for (int d = 1; d < 32; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
      if (lane == head) base = sum;
    }
    store2(to + head * 32, pack_halves(x[0] * down, x[2] * down), pack_halves(x[1] * down, x[3] * down));
  }
  return {__shfl_sync(~0u, base, 2 * t), __shfl_sync(~0u, base, 2 * t + 1)};
}

// Scores of all tokens, in units of 2^-24 of a token's scale: products of codes, less the middle of the codes.
TIERKV_DEVICE void warm_scores(uint32_t keys, uint32_t query, float zero, float (&s)[4][4]) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint32_t b[8][2];
  float sums[4] = {};
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const uint2 q = load2(query + (k * 32 + lane) * 8);
    b[k][0] = q.x, b[k][1] = q.y;
    // Of the query as the operands have it, so that the middle is taken out exactly: a field's sixteenth is sixteen times there.
    const uint32_t ones = g == 0 ? (k % 2 == 0 ? 0x3C003C00u : 0x4C004C00u) : 0u;
    multiply(sums, ones, 0, ones, 0, q.x, q.y);
  }
  constexpr float kUnit = 1.0f / 16777216.0f;
  const float begin0 = -zero * kUnit * __shfl_sync(~0u, sums[0], t), begin1 = -zero * kUnit * __shfl_sync(~0u, sums[1], t);
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) s[tile][0] = s[tile][2] = begin0, s[tile][1] = s[tile][3] = begin1;
#pragma unroll
  for (int h = 0; h < 4; ++h) {
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      const uint2 w = load2(keys + t * 64 + g * 8 + tile * WarmShape::kTile + h * 256);
#pragma unroll
      for (int f = 0; f < 2; ++f) {
        multiply(s[tile], codes<4>(w.x, 0, f), codes<4>(w.y, 0, f), codes<4>(w.x >> 8, 0, f), codes<4>(w.y >> 8, 0, f),
                 b[2 * h + f][0], b[2 * h + f][1]);
      }
    }
  }
}

// One block of this warp, whose copies are under way.
TIERKV_DEVICE void attend_warm_block(const CodecDesc& codec, const float4 (&plain)[8], uint32_t group, const WarpCopies& copies,
                                     uint32_t own, WarpState& state) {
  using F = ValueFormat<4, kWarmTokens>;
  const uint32_t lane = threadIdx.x % 32, weights = own, grid = weights + kWeightBytes, query = grid + kGridBytes;
  const uint32_t scales = query + WarmShape::kQuery, keys = scales + WarmShape::kScales, values = keys + WarmShape::kKeySlot;
  barrier_wait(copies.keys, copies.phase);
  const float2 base = load_warm_query(codec.key, plain, group, keys, query);
  if (const uint32_t meta = keys + codec.key.meta_at; lane < kWarmTokens / 4) {
    float s[4];
    log8_levels(16777216.0f * load1f(meta), load1(meta + 4 + lane * 4), s);
    store4f(scales + lane * 16, s[0], s[1], s[2], s[3]);
  }
  __syncwarp();
  float s[4][4];
  warm_scores(keys, query, codec.key.zero, s);
  weigh_half<true>(state, s, 1.0f, scales, base.x, base.y, true, static_cast<float>(F::kTop), weights);
  __syncwarp();
  barrier_wait(copies.values, copies.phase);
  load_value_grid<kWarmTokens>(state, meta_terms(codec.value), values + codec.value.meta_at, grid);
  __syncwarp();
  add_value_half<4, false, kWarmTokens>(state, values, grid, weights, 0);
}

TIERKV_DEVICE void attend_warm(const Launch& launch, const SegmentDesc& segment, uint8_t* memory) {
  __shared__ uint64_t barriers[kWarmWarps][2];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const CodecDesc& codec = launch.codecs[segment.codec];
  const uint32_t own = shared_address(memory + warp * WarmShape::kWarp);
  const WarpCopies copies{shared_address(&barriers[warp][0]), shared_address(&barriers[warp][1]), 0};
  const bool works = warp < segment.views;
  if (works && lane == 0) {
    const ViewDesc& view = launch.views[segment.first_view + warp];
    barrier_init(copies.keys), barrier_init(copies.values);
    fence_copies();
    const uint32_t keys = own + kWeightBytes + kGridBytes + WarmShape::kQuery + WarmShape::kScales;
    copy_in(keys, view.keys, padded_bytes(codec.key.bytes), copies.keys);
    copy_in(keys + WarmShape::kKeySlot, view.values, padded_bytes(codec.value.bytes), copies.values);
  }
  __syncwarp();
  WarpState state;
  if (works) {
    float4 plain[8];
#pragma unroll
    for (uint32_t head = 0; head < 8; ++head) {
      plain[head] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (head >= launch.group) continue;
      const float4 q = __ldg(reinterpret_cast<const float4*>(launch.queries + (segment.first_row + head) * size_t{kTileRows}) + lane);
      const float scale = launch.scale * kLog2E;
      plain[head] = {q.x * scale, q.y * scale, q.z * scale, q.w * scale};
    }
    attend_warm_block(codec, plain, launch.group, copies, own, state);
  }
  end_segment<kWarmWarps>(launch, segment, state, min(segment.views, kWarmWarps), 4.0f, false, codec.value.hadamard, memory);
}

#endif

}  // namespace tierkv::cuda
