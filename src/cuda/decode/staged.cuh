// staged.cuh — the path of rows without a faster one, bf16 ones and other warm codecs among them: a warp unpacks 16 rows at a time
// into shared memory as halves, where tensor cores read them. Rows of 16-bit floats and packed codes of one scale a row or a
// channel, any run of rows, any group. Compute capability 8.0.
//
// Scores:  S = K·Q^T, 16 rows and 8 heads a warp; the query is two halves a number, so that only the rows are rounded. A code as
//          it is is a half: 2^-24 of its value. Scales of tokens meet finished scores and weights, scales of channels the query.
// Order:   codes 0, 2, 1, 3 of every four lie behind one another, as two ands leave them; rows in shared memory, and the channels
//          of the query for packed keys, take the same order (staged_place()).
// Values:  O^T += V^T·P. A row's scale is in its weight, its offset in a sum of its own, the same for all channels.
// Warps:   the four of a thread block take 16 rows each of one view and share its query. Sums over a segment are floats.
#pragma once

#include "cuda/decode/halves.cuh"
#include "cuda/decode/merge.cuh"
#include "cuda/decode/staged_rows.cuh"

namespace tierkv::cuda {

// Of a warp: sums of weighted values and offsets, of weights, and the maximum of its columns.
template <int T>
struct StagedState {
  float values[T][4] = {};
  float offset0 = 0.0f, offset1 = 0.0f;
  float sum0 = 0.0f, sum1 = 0.0f;
  float top0 = -INFINITY, top1 = -INFINITY;

  TIERKV_DEVICE void shrink(float a0, float a1) {
    sum0 *= a0, sum1 *= a1, offset0 *= a0, offset1 *= a1;
#pragma unroll
    for (int j = 0; j < T; ++j) values[j][0] *= a0, values[j][1] *= a1, values[j][2] *= a0, values[j][3] *= a1;
  }
};

// Into the Hadamard frame, or out of it: a warp has E neighbouring channels of one row in each lane.
template <int E>
TIERKV_DEVICE void turn_frame(float (&x)[E], const float* signs, uint32_t dim, bool forward) {
  const uint32_t lane = threadIdx.x % 32, run = dim & (~dim + 1u);
#pragma unroll
  for (int e = 0; e < E; ++e) x[e] *= forward && lane * E + e < dim ? signs[lane * E + e] : 1.0f;
#pragma unroll
  for (int half = 1; half < E; half *= 2) {
#pragma unroll
    for (int e = 0; e < E; ++e) {
      if (e & half) continue;
      const float a = x[e], b = x[e + half];
      x[e] = a + b, x[e + half] = a - b;
    }
  }
  for (uint32_t d = 1; d * E < run; d *= 2) {
    const float own = lane & d ? -1.0f : 1.0f;
#pragma unroll
    for (int e = 0; e < E; ++e) x[e] = fmaf(x[e], own, __shfl_xor_sync(~0u, x[e], d));
  }
#pragma unroll
  for (int e = 0; e < E; ++e) x[e] *= !forward && lane * E + e < dim ? signs[lane * E + e] : 1.0f;
}

TIERKV_DEVICE float over_lanes(float x) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

// Whether the query has to be made ready for every view of a codec.
TIERKV_DEVICE bool own_channels(const quant::SideLayout& key) { return key.by_channel || key.mean_at != 0; }

// One copy of the code for all that read metadata.
__device__ __noinline__ ScaleOffset staged_entry(const quant::SideLayout& side, const uint8_t* meta, uint32_t i, uint32_t n) {
  return meta_entry(side, meta, i, n);
}

// What a view's keys say of their channels, a thread each.
template <int T>
TIERKV_DEVICE void stage_channels(const quant::SideLayout& key, const uint8_t* bytes, StagedShared<T>& all) {
#pragma unroll 1
  for (uint32_t c = threadIdx.x; c < key.head_dim; c += kStagedThreads) {
    float4 terms{1.0f, 0.0f, 1.0f, 0.0f};
    if (key.kind == quant::LayoutKind::packed && own_channels(key)) {
      const ChannelTerms own = channel_terms(key, bytes, c);
      terms.x = own.factor, terms.y = own.mean;
      if (key.by_channel) {
        const ScaleOffset grid = staged_entry(key, bytes + key.meta_at, c, key.head_dim);
        terms.z = grid.scale, terms.w = grid.offset;
      }
    }
    all.channels[c] = terms;
  }
}

// The query in the terms of a view's keys: a warp has two rows of it, E channels of each in a lane.
template <int T>
TIERKV_DEVICE void stage_query(const quant::SideLayout& key, const float (&plain)[2][T / 2], StagedShared<T>& all) {
  constexpr int E = T / 2;
  const uint32_t lane = threadIdx.x % 32, dim = key.head_dim;
  const bool packed = key.kind == quant::LayoutKind::packed;
  float x[2][E], base[2] = {}, sum[2] = {};
#pragma unroll
  for (int e = 0; e < E; ++e) {
    const float4 terms = lane * E + e < dim ? all.channels[lane * E + e] : float4{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      x[r][e] = plain[r][e] * terms.x;
      if (key.even) base[r] = fmaf(terms.y, plain[r][e], base[r]);  // even's means lie outside of the frame
    }
  }
  if (key.hadamard) {
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {  // both rows by one copy of the code
      turn_frame<E>(x[0], all.signs, dim, true);
#pragma unroll
      for (int e = 0; e < E; ++e) {
        const float other = x[0][e];
        x[0][e] = x[1][e], x[1][e] = other;
      }
    }
  }
#pragma unroll
  for (int e = 0; e < E; ++e) {
    const float4 terms = lane * E + e < dim ? all.channels[lane * E + e] : float4{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t row = threadIdx.x / 32 * 2 + r;
      base[r] = fmaf(terms.w + (key.even ? 0.0f : terms.y), x[r][e], base[r]);
      x[r][e] *= terms.z;
      sum[r] += x[r][e];
      const __half high = __float2half(x[r][e]);
      const uint32_t to = packed ? staged_place(lane * E + e) : lane * E + e;
      all.query[0][row][to] = high, all.query[1][row][to] = __float2half(x[r][e] - __half2float(high));
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    base[r] = over_lanes(base[r]), sum[r] = over_lanes(sum[r]);
    if (lane == 0) all.base[threadIdx.x / 32 * 2 + r] = base[r], all.sums[threadIdx.x / 32 * 2 + r] = sum[r];
  }
}

// What a row's scale and offset do to its score (lanes 0..15) or to its weight (16..31). A channel far from a row's largest is
// often offset and code that cancel: so an offset is measured in the rounded weight that the codes meet, unless codes hardly count
// beside it.
struct RowTerms {
  float scale, offset;  // offset of keys; of values, over the scale
  float direct;         // of values: for the weight itself
};
TIERKV_DEVICE RowTerms row_terms(const CodecDesc& codec, const ViewDesc& view, uint32_t first, uint32_t seen, float& unit) {
  const uint32_t lane = threadIdx.x % 32, row = lane % 16;
  const bool value = lane >= 16;
  const quant::SideLayout& side = value ? codec.value : codec.key;
  RowTerms terms{1.0f, 0.0f, 0.0f};
  if (side.kind == quant::LayoutKind::packed && !side.by_channel) {
    const ScaleOffset entry = staged_entry(side, (value ? view.values : view.keys) + side.meta_at, first + row, side.tokens);
    terms.scale = entry.scale, terms.offset = entry.offset;
  }
  unit = 1.0f;
  if (!value) terms.scale *= code_unit(side);
  if (codec.value.kind != quant::LayoutKind::packed) return terms;
  const bool counts = value && (seen >> row & 1u) != 0;
  const uint32_t exponent = __reduce_max_sync(~0u, __float_as_uint(counts ? fabsf(terms.scale) : 0.0f)) >> 23;
  const float power = __uint_as_float(min(max(exponent, 1u), 229u) << 23);
  unit = power * code_unit(codec.value);
  if (!value) return terms;
  if (!counts) return {0.0f, 0.0f, 0.0f};
  const float most = static_cast<float>(4u << side.bits);
  if (fabsf(terms.offset) <= most * fabsf(terms.scale)) {
    terms.offset = terms.scale == 0.0f ? 0.0f : terms.offset / terms.scale * power;
  } else {
    terms.direct = terms.offset, terms.offset = 0.0f;
  }
  terms.scale /= power;
  return terms;
}

// Scores of the keys in shared memory: rows g and g + 8, heads 2t and 2t + 1.
template <int T>
TIERKV_DEVICE void staged_scores(const StagedShared<T>& all, const __half* keys, uint32_t dim, float (&c)[4]) {
  constexpr uint32_t kRow = StagedShared<T>::kRow;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t a_at = shared_address(keys + lane % 16 * kRow + lane / 16 * 8);
  const uint32_t b_at = shared_address(&all.query[lane / 16][lane % 8][lane / 8 % 2 * 8]);
#pragma unroll 4
  for (uint32_t j = 0; j < dim / 16; ++j) {
    const uint4 a = load_matrices(a_at + 32 * j), q = load_matrices(b_at + 32 * j);
    multiply(c, a.x, a.y, a.z, a.w, q.x, q.y);
    multiply(c, a.x, a.y, a.z, a.w, q.z, q.w);
  }
}

// Adds the weighted values in shared memory.
template <int T, bool kPlain>
TIERKV_DEVICE void staged_values(const __half* values, uint32_t dim, float unit, uint32_t low, uint32_t high,
                                 StagedState<T>& state) {
  using S = StagedShared<T>;
  const uint32_t lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8, side = lane / 8 % 2 * 8;
  const uint32_t at = shared_address(kPlain ? values + row * S::kRow + side : values + lane % 16 * S::kChannel + lane / 16 * 8);
#pragma unroll
  for (int j = 0; j < T; ++j) {
    if (16 * j >= dim) continue;
    const uint4 a = kPlain ? load_matrices_transposed(at + 32 * j) : load_matrices(at + 2 * 16 * S::kChannel * j);
    float c[4] = {};
    multiply(c, a.x, a.y, a.z, a.w, low, high);
#pragma unroll
    for (int i = 0; i < 4; ++i) state.values[j][i] = fmaf(c[i], unit, state.values[j][i]);
  }
}

// 16 rows of a view.
template <int T>
TIERKV_DEVICE void staged_tile(const Launch& launch, const ViewDesc& view, uint32_t first, StagedShared<T>& all,
                               StagedState<T>& state) {
  const uint32_t lane = threadIdx.x % 32, g = staged_place(lane / 4), t = lane % 4;  // row g, and g + 8
  const uint32_t seen = __ballot_sync(~0u, lane < 16 && sees_row(launch, view, first + lane));
  if (seen == 0) return;
  const CodecDesc& codec = *reinterpret_cast<const CodecDesc*>(all.codec);
  const quant::SideLayout &key = codec.key, &value = codec.value;
  __half* const own = all.staged[threadIdx.x / 32];
  stage_side<T>(view.keys, first, seen, true);
  float unit;
  const RowTerms terms = row_terms(codec, view, first, seen, unit);
  __syncwarp();
  float s[4] = {};
  staged_scores<T>(all, own, key.head_dim, s);
  const float2 base = *reinterpret_cast<const float2*>(all.base + 2 * t), sum = *reinterpret_cast<const float2*>(all.sums + 2 * t);
  const float scale0 = __shfl_sync(~0u, terms.scale, g), scale1 = __shfl_sync(~0u, terms.scale, g + 8);
  const float offset0 = __shfl_sync(~0u, terms.offset, g), offset1 = __shfl_sync(~0u, terms.offset, g + 8);
  s[0] = fmaf(s[0], scale0, fmaf(offset0, sum.x, base.x)), s[1] = fmaf(s[1], scale0, fmaf(offset0, sum.y, base.y));
  s[2] = fmaf(s[2], scale1, fmaf(offset1, sum.x, base.x)), s[3] = fmaf(s[3], scale1, fmaf(offset1, sum.y, base.y));
  weigh_rows(launch, seen >> g & 1u, seen >> (g + 8) & 1u, state, s);

  const bool plain = value.kind == quant::LayoutKind::rows16;
  const float weigh0 = __shfl_sync(~0u, terms.scale, g + 16), weigh1 = __shfl_sync(~0u, terms.scale, g + 24);
  const uint32_t low = pack_halves(s[0] * weigh0, s[1] * weigh0), high = pack_halves(s[2] * weigh1, s[3] * weigh1);
  if (!plain) {
    const float ratio0 = __shfl_sync(~0u, terms.offset, g + 16), ratio1 = __shfl_sync(~0u, terms.offset, g + 24);
    const float direct0 = __shfl_sync(~0u, terms.direct, g + 16), direct1 = __shfl_sync(~0u, terms.direct, g + 24);
    const float2 a = halves_of(low), b = halves_of(high);
    state.offset0 += a.x * ratio0 + s[0] * direct0 + b.x * ratio1 + s[2] * direct1;
    state.offset1 += a.y * ratio0 + s[1] * direct0 + b.y * ratio1 + s[3] * direct1;
  }
  __syncwarp();
  stage_side<T>(view.values, first, seen, false);
  __syncwarp();
  const uint32_t p0 = transposed(low), p1 = transposed(high);
  if (plain) staged_values<T, true>(own, value.head_dim, unit, p0, p1, state);
  else staged_values<T, false>(own, value.head_dim, unit, p0, p1, state);
  __syncwarp();
}

// The warps' states become one, in the plain frame, and go where the merge will look.
template <int T>
TIERKV_DEVICE void end_staged(const Launch& launch, const SegmentDesc& segment, uint32_t first_head, bool rotated,
                              StagedShared<T>& all, const StagedState<T>& state) {
  constexpr int E = T / 2;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4, dim = launch.head_dim;
  auto& end = all.end;
  const float2 sum = over_rows(state.sum0, state.sum1), offset = over_rows(state.offset0, state.offset1);
  __syncthreads();
  if (lane < 4) {
    end.tops[warp][2 * t] = state.top0, end.tops[warp][2 * t + 1] = state.top1;
    end.totals[warp][2 * t] = sum.x, end.totals[warp][2 * t + 1] = sum.y;
  }
#pragma unroll
  for (int j = 0; j < T; ++j) {
    float *const a = end.values[warp][2 * t] + 16 * j + g, *const b = end.values[warp][2 * t + 1] + 16 * j + g;
    a[0] = state.values[j][0] + offset.x, a[8] = state.values[j][2] + offset.x;
    b[0] = state.values[j][1] + offset.y, b[8] = state.values[j][3] + offset.y;
  }
  __syncthreads();
  for (uint32_t row = 2 * warp; row < 2 * warp + 2 && first_head + row < launch.group; ++row) {
    float top = -INFINITY, total = 0.0f, x[E] = {};
#pragma unroll
    for (uint32_t w = 0; w < kStagedWarps; ++w) top = fmaxf(top, end.tops[w][row]);
#pragma unroll
    for (uint32_t w = 0; w < kStagedWarps; ++w) {
      const float own = end.tops[w][row], share = own == -INFINITY ? 0.0f : power2(own - top);
      total = fmaf(share, end.totals[w][row], total);
#pragma unroll
      for (int e = 0; e < E; ++e) x[e] = fmaf(share, end.values[w][row][lane * E + e], x[e]);
    }
    if (rotated) turn_frame<E>(x, all.signs, dim, false);
    const size_t to = static_cast<size_t>(segment.partial) * launch.group + first_head + row;
#pragma unroll
    for (int e = 0; e < E; ++e) {
      if (lane * E + e < dim) launch.partial_out[to * dim + lane * E + e] = x[e];
    }
    if (lane == 0) launch.partial_top[to] = top, launch.partial_sum[to] = total;
  }
}

// Asks for the bytes of a view, so that they are near when their turn comes.
TIERKV_DEVICE void prefetch_sides(const Launch& launch, const CodecDesc& codec, const ViewDesc& view) {
  constexpr uint32_t kLine = 128;
  const uint32_t rows = view.end * launch.head_dim * 2;
  const uint32_t keys = codec.key.kind == quant::LayoutKind::rows16 ? rows : codec.key.bytes;
  const uint32_t values = codec.value.kind == quant::LayoutKind::rows16 ? rows : codec.value.bytes;
#pragma unroll 1
  for (uint32_t i = threadIdx.x * kLine; i < max(keys, values); i += kStagedThreads * kLine) {
    if (i < keys) prefetch_line(view.keys + i);
    if (i < values) prefetch_line(view.values + i);
  }
}

// Up to eight rows of a group over all views of a segment, whose values are all in one frame.
template <int T>
TIERKV_DEVICE void attend_staged(const Launch& launch, const SegmentDesc& segment, uint32_t first_head) {
  constexpr int E = T / 2;
  StagedShared<T>& all = staged_shared<T>();
  const uint32_t dim = launch.head_dim, run = dim & (~dim + 1u), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // What does not wait for one another is asked for together: the codec of the first view, the view and the query.
  uint32_t known = segment.codec;
  const auto load_codec = [&] {
    for (uint32_t i = threadIdx.x; i < sizeof(CodecDesc) / 4; i += kStagedThreads)
      reinterpret_cast<uint32_t*>(all.codec)[i] = __ldg(reinterpret_cast<const uint32_t*>(launch.codecs + known) + i);
  };
  load_codec();
  float query[2][E];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t head = first_head + 2 * warp + r;
    const float* const from = launch.queries + static_cast<size_t>(segment.first_row + head) * dim + lane * E;
#pragma unroll
    for (int e = 0; e < E; ++e) query[r][e] = head < launch.group && lane * E + e < dim ? from[e] * (launch.scale * kLog2E) : 0.0f;
  }
#pragma unroll 1
  for (uint32_t c = threadIdx.x; c < dim; c += kStagedThreads) all.signs[c] = frame_sign(dim, c) * rsqrtf(static_cast<float>(run));
  StagedState<T> state;
  const CodecDesc& codec = *reinterpret_cast<const CodecDesc*>(all.codec);
  uint32_t tiles = 0;  // of the views before: warps take turns, whatever the view
#pragma unroll 1
  for (uint32_t v = 0; v < segment.views; ++v) {
    const ViewDesc view = launch.views[segment.first_view + v];
    const bool fresh = v == 0 || view.codec != known;
    // Views of one codec that need nothing in common are not waited for.
    const bool in_common = fresh || own_channels(codec.key);
    if (in_common) __syncthreads();
    if (view.codec != known) {
      known = view.codec;
      load_codec();
      __syncthreads();
    }
    static_assert(quant::kMostLevels == 16);  // half a warp's lanes each
    if (fresh && warp == 0)
      all.levels[lane / 16][lane % 16] = __float2half((lane < 16 ? codec.key : codec.value).levels[lane % 16]);
    prefetch_sides(launch, codec, view);
    if (fresh || own_channels(codec.key)) {
      stage_channels<T>(codec.key, view.keys, all);
      __syncthreads();
      if (v == 0 || first_head + 2 * warp < launch.group) stage_query<T>(codec.key, query, all);  // of no heads it stays zeros
    }
    if (in_common) __syncthreads();
    const uint32_t begin = view.begin / 16 * 16;
#pragma unroll 1
    for (uint32_t first = begin + 16 * ((warp - tiles) % kStagedWarps); first < view.end; first += 16 * kStagedWarps)
      staged_tile<T>(launch, view, first, all, state);
    tiles += (view.end - begin + 15) / 16;
  }
  end_staged<T>(launch, segment, first_head, segment.views != 0 && codec.value.hadamard != 0, all, state);
  __syncthreads();
}

}  // namespace tierkv::cuda
