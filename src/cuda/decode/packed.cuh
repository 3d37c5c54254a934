// packed.cuh — the tensor-core path of codes on one grid: kivi (a scale and a minimum a channel of keys) and rot (a scale a token
// and a mean a channel), keys of 2 or 4 bits, values of 2 or 4; heads of D channels.
//
// kivi:  the channels' scales go into the query, block by block; the minimums' product with the query is one number a head.
// rot:   the query stays, the tokens' scales meet the finished scores; the middle of the codes is where sums begin.
//
// Queries of two halves (heads of 64 channels, in groups of up to 4): columns 4..7, which are free, have what the halves of columns
// 0..3 leave out, and scores are sums of two columns.
#pragma once

#include "cuda/decode/fast.cuh"

namespace tierkv::cuda {

template <int K, int V, uint32_t D>
struct PackedShape {
  static constexpr int kPerWord = 32 / K, kFields = 8 / K, kTop = 8 - K;
  static constexpr int kWords = D / (4 * kPerWord), kSteps = D / 16;  // chunks that a lane takes; products of 16 channels
  static constexpr uint32_t kKeyCodes = 16 * D * K, kValueCodes = 16 * D * V, kKeyTile = kKeyCodes / 8;
  static constexpr uint32_t kKeySlot = kKeyCodes + 512, kValueSlot = kValueCodes + 512;
  // Blocks at work at a time, and warps. Of 4 bits there is room for few blocks, and a warp alone would be at work on one for
  // longer than memory takes to bring the next: two warps take a block there, 64 tokens each.
  static constexpr uint32_t kEach = K + V >= 8 && D > 64 ? 2 : 1, kBlocks = packed_blocks(K, V, D), kWarps = kBlocks * kEach;
  static_assert(kWarps <= kThreads / 32);
  // Of a block: copies of keys and values. Of a warp: weights, the values' grid, the tokens' scales.
  static constexpr uint32_t kBlock = kKeySlot + kValueSlot, kWarp = kWeightBytes + kGridBytes + 512;
  static constexpr uint32_t kQueryAt = kBlocks * kBlock + kWarps * kWarp;
  static constexpr uint32_t kQuery =
      2 * kSteps * 64 * 4 + 128 + 8 * (D + 4) * 4;  // operands of the query, plain and raised; sums of its heads; rows
  static constexpr uint32_t kBytes = kQueryAt + kQuery;
};

// Two neighbouring halves each at `at`, `at + 4`, ...: the pairs (0, 2) and (1, 3) of every four, as operands have them.
template <int N, bool kAligned>
TIERKV_DEVICE void load_pairs(uint32_t at, uint32_t (&out)[N]) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    uint4 v;
    if constexpr (kAligned) {
      v = load4(at + 4 * i);
    } else {
      v = {load1(at + 4 * i), load1(at + 4 * i + 4), load1(at + 4 * i + 8), load1(at + 4 * i + 12)};
    }
    out[i] = __byte_perm(v.x, v.y, 0x5410), out[i + 1] = __byte_perm(v.x, v.y, 0x7632);
    out[i + 2] = __byte_perm(v.z, v.w, 0x5410), out[i + 3] = __byte_perm(v.z, v.w, 0x7632);
  }
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Whether columns 4..7 have what is left out of columns 0..3.
template <uint32_t D>
TIERKV_DEVICE bool has_rest(const Launch& launch) {
  return kTwoHalves<D> && launch.group <= 4;
}

// The query as B operands: [step pair][lane][4], step = chunk half·fields + field; and raised by 2^(top - place of the field). `x`:
// part_of_row()'s channels of the head of column `warp`.
template <int K, int V, uint32_t D>
TIERKV_DEVICE void load_packed_query(float (&x)[4], bool hadamard, bool rest, uint32_t* plain, uint32_t* raised, float* sums,
                                     float* rows) {
  using S = PackedShape<K, V, D>;
  constexpr uint32_t kRow = D + 4;
  if (const uint32_t head = threadIdx.x / 32, lane = threadIdx.x % 32; head < 8) {
    float sum = 0.0f;
    if (hadamard) turn_frame<D>(x, true);
    if (rest && head >= 4) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] -= __half2float(__float2half(x[e]));
    }
    if (lane < D / 4) *reinterpret_cast<float4*>(rows + head * kRow + lane * 4) = {x[0], x[1], x[2], x[3]};
      // Of the query as the operands have it, so that the codes' middle is taken out exactly.
#pragma unroll
    for (int e = 0; e < 4; ++e) sum += __half2float(__float2half(x[e]));
    for (uint32_t d = D / 8; d != 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (lane == 0) sums[head] = sum;
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < S::kSteps * 64; i += kThreads) {
    const int step = i / 64, lane = i / 2 % 32, j = i % 2, h = step / S::kFields, f = step % S::kFields, head = lane / 4;
    const int c = (lane % 4 + 4 * h) * S::kPerWord + 4 * f + j;
    const float a = rows[head * kRow + c], b = rows[head * kRow + c + 2], up = static_cast<float>(1 << (S::kTop - K * f));
    const int at = (step / 2 * 32 + lane) * 4 + step % 2 * 2 + j;
    plain[at] = pack_halves(a, b), raised[at] = pack_halves(a * up, b * up);
  }
}

// The query times the channels' scales, two halves; for columns with a rest, what rounding leaves out of that.
TIERKV_DEVICE uint32_t scaled(uint32_t query, uint32_t scale, bool rest, uint32_t query_rest) {
  const uint32_t product = times(query, scale);
  if (!rest) return product;
  return times_plus(query_rest, scale, times_plus(query, scale, product ^ 0x80008000u));
}

// The query against one block's keys: operands with the channels' scales in them, and what every score begins with.
template <int K, int V, uint32_t D, bool kByChannel>
TIERKV_DEVICE float2 load_block_query(uint32_t meta, uint32_t mean_at, bool has_mean, bool rest, uint32_t raised, uint32_t plain,
                                      uint32_t (&b)[D / 16][2]) {
  using S = PackedShape<K, V, D>;
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float base[4] = {};
#pragma unroll
  for (int h = 0; h < S::kWords; ++h) {
    const uint32_t own = (t + 4 * h) * S::kPerWord * 2;
    uint32_t scale[S::kPerWord / 2] = {}, mean[S::kPerWord / 2] = {};
    if constexpr (kByChannel) load_pairs<S::kPerWord / 2, true>(meta + own, scale);
    if (has_mean) load_pairs<S::kPerWord / 2, kByChannel>(mean_at + own, mean);
#pragma unroll
    for (int f = 0; f < S::kFields; f += 2) {
      const int k = h * S::kFields + f;
      const uint4 q = load4(raised + lane * 16 + k / 2 * 512);
      b[k][0] = q.x, b[k][1] = q.y, b[k + 1][0] = q.z, b[k + 1][1] = q.w;
      if constexpr (kByChannel) {
        // Lanes of columns 4..7 need the halves of their head, of columns 0..3, beside what these leave out.
        const uint4 of = rest ? load4(raised + lane % 16 * 16 + k / 2 * 512) : q;
        const bool own = rest && g >= 4;
        b[k][0] = scaled(of.x, scale[2 * f], own, q.x), b[k][1] = scaled(of.y, scale[2 * f + 1], own, q.y);
        b[k + 1][0] = scaled(of.z, scale[2 * f + 2], own, q.z), b[k + 1][1] = scaled(of.w, scale[2 * f + 3], own, q.w);
      }
      if (!has_mean) continue;
      const uint4 z = load4(plain + lane * 16 + k / 2 * 512);
      multiply(base, g == 0 ? mean[2 * f] : 0u, 0, g == 0 ? mean[2 * f + 1] : 0u, 0, z.x, z.y);
      multiply(base, g == 0 ? mean[2 * f + 2] : 0u, 0, g == 0 ? mean[2 * f + 3] : 0u, 0, z.z, z.w);
    }
  }
  float2 both{__shfl_sync(~0u, base[0], t), __shfl_sync(~0u, base[1], t)};
  if (rest) both.x += __shfl_sync(~0u, base[0], t ^ 2), both.y += __shfl_sync(~0u, base[1], t ^ 2);
  return both;
}

// What a warp has to do with its block and with whoever works on it too. Where two do, the first one's barriers are for copies, and
// by the second one's each tells that it has read what the other will have copied to.
template <class Shape>
struct PackedPart {
  uint32_t block, first_half, last_half;  // of the blocks at a time, and of its tokens
  bool copies_keys, copies_values;        // it asks for the next ones
  WarpCopies there, read;

  TIERKV_DEVICE explicit PackedPart(const Barriers& barriers)
      : block(threadIdx.x / 32 / Shape::kEach),
        there(barriers, block * Shape::kEach),
        read(barriers, block * Shape::kEach + Shape::kEach - 1) {
    const uint32_t part = threadIdx.x / 32 % Shape::kEach;
    first_half = part, last_half = Shape::kEach == 1 ? 1 : part;
    copies_keys = part == 0, copies_values = part + 1 == Shape::kEach;
  }
  TIERKV_DEVICE bool works() const { return block < Shape::kBlocks; }

  // All lanes have read a side of the block: the other warp is told, or the next block's is copied there if there is `more`.
  TIERKV_DEVICE void end_side(bool copies, uint32_t read, uint32_t phase, bool more, uint32_t to, const uint8_t* next,
                              uint32_t bytes, uint32_t there) const {
    if (threadIdx.x % 32 != 0) return;
    if (!copies) {
      barrier_arrive(read);
    } else if (more) {
      if constexpr (Shape::kEach == 2) barrier_wait(read, phase);
      copy_in(to, next, bytes, there);
    }
  }
};

// The first blocks of a segment. All multiprocessors ask for theirs at once, and it takes microseconds until they are there: what
// is needed before them has to be asked for before. Half of the warps begin later, so that the others have theirs sooner.
template <class Shape>
TIERKV_DEVICE void begin_packed(const Launch& launch, const FastPiece& piece, const PackedPart<Shape>& part, uint8_t* memory) {
  if (!part.works() || part.block >= piece.segment.views || threadIdx.x % 32 != 0) return;
  const uint32_t keys = shared_address(memory + part.block * Shape::kBlock);
  const ViewDesc& view = launch.views[piece.segment.first_view + part.block];
  const uint8_t *const from = view.keys, *const others = view.values;
  if (part.copies_keys) copy_in(keys, from, piece.codec.key_bytes, part.there.keys);
  if (part.copies_values) copy_in(keys + Shape::kKeySlot, others, piece.codec.value_bytes, part.there.values);
}

template <int K, int V, uint32_t D, bool kByChannel>
TIERKV_DEVICE void attend_packed(const Launch& launch, const FastPiece& piece, const Barriers& barriers, uint32_t& phase,
                                 uint8_t* memory) {
  using S = PackedShape<K, V, D>;
  using F = ValueFormat<V, D>;
  constexpr float kScore = static_cast<float>(1u << (24 - S::kTop));
  const PackedPart<S> part(barriers);
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const SegmentDesc& segment = piece.segment;
  const uint32_t keys = shared_address(memory + part.block * S::kBlock), values = keys + S::kKeySlot;
  const ViewDesc* views = launch.views + segment.first_view;
  const FastCodec& codec = piece.codec;
  const bool rest = has_rest<D>(launch);  // false for other heads, and known to the compiler
  const uint32_t head = rest && warp < 8 ? warp % 4 : warp;
  float query[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float* const from = launch.queries + static_cast<size_t>(segment.first_row + head) * D + part_of_row<D>() * 4 + e;
    query[e] = head < launch.group ? __ldg(from) * (launch.scale * kLog2E) : 0.0f;
  }
  if (part.block < S::kBlocks / 2) begin_packed(launch, piece, part, memory);
  auto* plain = reinterpret_cast<uint32_t*>(memory + S::kQueryAt);
  uint32_t* raised = plain + S::kSteps * 64;
  auto* query_sums = reinterpret_cast<float*>(raised + S::kSteps * 64);
  WarpState<D> state;
  const uint32_t weights = shared_address(memory + S::kBlocks * S::kBlock + warp * S::kWarp), grid = weights + kWeightBytes,
                 scales = grid + kGridBytes;
  const uint32_t raised_at = shared_address(raised), plain_at = shared_address(plain);
  const bool has_mean = kByChannel || codec.mean_at != 0;
  const uint32_t mean_at = keys + (kByChannel ? S::kKeyCodes + 2 * D : codec.mean_at);
  load_packed_query<K, V, D>(query, codec.key_hadamard, rest, plain, raised, query_sums, query_sums + 32);
  __syncthreads();
  if (part.block >= S::kBlocks / 2) begin_packed(launch, piece, part, memory);
  const float begin0 = kByChannel ? 0.0f : -codec.key_zero * query_sums[2 * t] / kScore;
  const float begin1 = kByChannel ? 0.0f : -codec.key_zero * query_sums[2 * t + 1] / kScore;

  for (uint32_t v = part.block; part.works() && v < segment.views; v += S::kBlocks, phase ^= 1) {
    const bool more = v + S::kBlocks < segment.views;
    // Read now, needed when the slots are free: the addresses must not be waited for then.
    const uint8_t* const next_keys = views[more ? v + S::kBlocks : v].keys;
    const uint8_t* const next_values = views[more ? v + S::kBlocks : v].values;
    uint32_t b[S::kSteps][2];
    barrier_wait(part.there.keys, phase);
    const float2 base = load_block_query<K, V, D, kByChannel>(keys + S::kKeyCodes, mean_at, has_mean, rest, raised_at, plain_at, b);
    if constexpr (!kByChannel) {
      float s[4];
      log8_levels(kScore * load1f(keys + S::kKeyCodes), load1(keys + S::kKeyCodes + 4 + lane * 4), s);
      store4f(scales + lane * 16, s[0], s[1], s[2], s[3]);
      __syncwarp();
    }
#pragma unroll 1
    for (uint32_t half = part.first_half; half <= part.last_half; ++half) {
      const bool last = half == part.last_half;
      float s[4][4];
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) s[tile][0] = s[tile][2] = begin0, s[tile][1] = s[tile][3] = begin1;
#pragma unroll
      for (int h = 0; h < S::kWords; ++h) {
#pragma unroll
        for (int tile = 0; tile < 4; ++tile) {
          const uint2 w = load2(keys + t * 64 + g * 8 + (half * 4 + tile) * S::kKeyTile + h * 256);
#pragma unroll
          for (int f = 0; f < S::kFields; ++f) {
            const int k = h * S::kFields + f;
            multiply(s[tile], codes<K>(w.x, 0, f), codes<K>(w.y, 0, f), codes<K>(w.x >> 8, 0, f), codes<K>(w.y >> 8, 0, f), b[k][0],
                     b[k][1]);
          }
        }
      }
      if (rest) {
#pragma unroll
        for (int i = 0; i < 16; ++i) s[i / 4][i % 4] += __shfl_xor_sync(~0u, s[i / 4][i % 4], 2);
      }
      weigh_half<!kByChannel>(state, s, kByChannel ? kScore : 1.0f, scales + half * 256, base.x, base.y, true,
                              static_cast<float>(F::kTop), weights);
      __syncwarp();
      if (last) {
        part.end_side(part.copies_keys, part.read.keys, phase, more, keys, next_keys, codec.key_bytes, part.there.keys);
      }
      if (half == part.first_half) {
        barrier_wait(part.there.values, phase);
        load_value_grid(state, piece.value_terms(), values + S::kValueCodes, grid);
        __syncwarp();
      }
      add_value_half<V>(state, values, grid, weights, static_cast<int>(half));
      __syncwarp();
      if (last) {
        part.end_side(part.copies_values, part.read.values, phase, more, values, next_values, codec.value_bytes, part.there.values);
      }
    }
  }
  end_segment(launch, segment, state, S::kWarps, static_cast<float>(F::kTop), false, codec.value_hadamard, memory);
}

#endif

}  // namespace tierkv::cuda
