// tiles.cuh — the general path: attention of one thread block over one segment, for every codec that has a layout, any run of rows
// and any group, on tensor cores. Compute capability 8.0.
//
// A warp takes 16 to 64 rows of a view at a time, 16 in one go: scores S^T = K·Q^T of 16 rows and 8 heads, softmax, and the rows'
// values O^T += V^T·P^T. Codes less their middle are exact as halves; scales of tokens meet finished scores and weights, scales of
// channels the query (tile_query.cuh). Sums over a segment are floats. What a lane holds is in tile_map.h.
#pragma once

#include "cuda/decode/halves.cuh"
#include "cuda/decode/merge.cuh"
#include "cuda/decode/tile_query.cuh"
#include "cuda/launch/better.h"

namespace tierkv::cuda {

// Of a warp: sums of weighted values, in one frame at a time, and of weights; the maximum of its columns.
template <int T>
struct TileState {
  float values[T][4] = {};
  float sum0 = 0.0f, sum1 = 0.0f;
  float top0 = -INFINITY, top1 = -INFINITY;
  bool rotated = false, empty = true;

  TIERKV_DEVICE void shrink(float a0, float a1) {
    sum0 *= a0, sum1 *= a1;
#pragma unroll
    for (int j = 0; j < T; ++j) values[j][0] *= a0, values[j][1] *= a1, values[j][2] *= a0, values[j][3] *= a1;
  }
};

// Which 16 rows, and which of them this lane's columns of scores and the query may see.
struct TileRows {
  uint32_t first;
  bool low, high;  // rows first + tile_position(g), and two on
};

// All words of 16 rows at once, so that none waits for another: codes[j] of rows `at` and at + 2 of a tile.
template <int T, class Words>
TIERKV_DEVICE void load_codes(const quant::SideLayout& side, const uint8_t* bytes, uint32_t steps, uint32_t at, const Words& words,
                              uint32_t (&codes)[T][2]) {
#pragma unroll
  for (int j = 0; j < T; ++j) codes[j][0] = codes[j][1] = 0;
#pragma unroll 1
  for (uint32_t i = 0; i < quant::kMostPlanes && side.planes[i].bits != 0; ++i) {
    const PlaneWords plane = words(side.planes[i]);
    uint32_t raw[T][2];
#pragma unroll
    for (int j = 0; j < T; ++j) {
      if (j >= steps) continue;
      const uint8_t* const from = bytes + plane.offset(j) + 4 * at;
      raw[j][0] = load_word(from), raw[j][1] = load_word(from + 8);
    }
#pragma unroll
    for (int j = 0; j < T; ++j) {
      if (j >= steps) continue;
      codes[j][0] |= plane.codes(raw[j][0], j), codes[j][1] |= plane.codes(raw[j][1], j);
    }
  }
}

// All of 16 rows of 16-bit floats at once: four neighbours each of this lane's two rows.
template <int T>
TIERKV_DEVICE void load_rows(const uint8_t* bytes, const TileRows& rows, uint32_t dim, bool bf16, uint2 (&out)[T][2]) {
  const uint32_t lane = threadIdx.x % 32, row = rows.first + tile_position(lane / 4);
  const uint8_t* const from = bytes + 2 * (row * dim + 4 * (lane % 4));
#pragma unroll
  for (int j = 0; j < T; ++j) {
    out[j][0] = out[j][1] = {0, 0};
    if (rows.low && 16 * j < dim) out[j][0] = __ldg(reinterpret_cast<const uint2*>(from + 32 * j));
    if (rows.high && 16 * j < dim) out[j][1] = __ldg(reinterpret_cast<const uint2*>(from + 4 * dim + 32 * j));
  }
  if (!bf16) return;
#pragma unroll
  for (int j = 0; j < T; ++j) out[j][0] = from_bf16(out[j][0]), out[j][1] = from_bf16(out[j][1]);
}

// Scales and offsets of the 16 rows' keys and values by group of channels, a lane each, offsets with the codes' middle in them.
// Returns the power of two that values are to be measured in, so that halves hold weights times scales.
template <int T>
TIERKV_DEVICE float load_entries(const CodecDesc& codec, const ViewDesc& view, uint32_t first, typename TileShared<T>::Warp& own) {
  const uint32_t lane = threadIdx.x % 32, row = first + lane % 16;
  const quant::SideLayout& side = lane < 16 ? codec.key : codec.value;
  const uint8_t* const bytes = (lane < 16 ? view.keys : view.values) + side.meta_at;
  const bool has = side.kind == quant::LayoutKind::packed && !side.by_channel && row < side.tokens;
  const uint32_t groups = has ? side.groups : 1;
  const float middle = has && !side.has_levels ? static_cast<float>(code_middle(side.bits)) : 0.0f;
  float most = 0.0f;
  __syncwarp();
  for (uint32_t i = 0; i < groups; ++i) {
    ScaleOffset entry{1.0f, 0.0f};
    if (has) entry = meta_entry(side, bytes, i * side.tokens + row, groups * side.tokens);
    entry.offset += middle * entry.scale;
    own.entries[i][lane] = {entry.scale, entry.offset};
    if (lane >= 16 && has) most = fmaxf(most, fmaxf(fabsf(entry.scale), fabsf(entry.offset)));
  }
  __syncwarp();
  if (codec.value.kind != quant::LayoutKind::packed) return 1.0f;
  const uint32_t exponent = __reduce_max_sync(~0u, __float_as_uint(most)) >> 23;
  return __uint_as_float(min(max(exponent, 1u), 253u) << 23);
}

// Adds the scores of 16 rows of 16-bit floats.
template <int T>
TIERKV_DEVICE void score_plain(const quant::SideLayout& key, const ViewDesc& view, const TileRows& rows,
                               const typename TileShared<T>::Warp& own, float (&s)[4]) {
  uint2 a[T][2];
  load_rows<T>(view.keys, rows, key.head_dim, key.bf16, a);
#pragma unroll
  for (int j = 0; j < T; ++j) {
    if (16 * j >= key.head_dim) continue;
    const uint4 q = own.query[j * 32 + threadIdx.x % 32];
    multiply(s, a[j][0].x, a[j][1].x, a[j][0].y, a[j][1].y, q.x, q.y);
    multiply(s, a[j][0].x, a[j][1].x, a[j][0].y, a[j][1].y, q.z, q.w);
  }
}

// Adds those of 16 rows of codes.
template <int T>
TIERKV_DEVICE void score_codes(const quant::SideLayout& key, const ViewDesc& view, const TileRows& rows,
                               const typename TileShared<T>::Warp& own, float (&s)[4]) {
  const uint32_t lane = threadIdx.x % 32, at = tile_position(lane / 4), t = lane % 4;
  const bool words = key.kind == quant::LayoutKind::words, by_token = !words && !key.by_channel, levels = key.has_levels;
  const uint32_t steps = (words ? key.components + 15 : key.head_dim) / 16, each = key.groups == 1 ? steps : key.group / 16;
  uint32_t left = each, group = 0;
  uint32_t codes[T][2];
  const uint32_t packed_middle = words ? 0 : code_middle(key.bits);
  if (words) {
#pragma unroll
    for (int j = 0; j < T; ++j) {
      const WordQuad quad = word_quad(key, 4 * j + t);
      codes[j][0] = codes[j][1] = 0;
      if (4 * (4 * j + t) >= key.components) continue;
      const uint8_t* const from = view.keys + word_offset(key, quad, rows.first) + 4 * at;
      codes[j][0] = word_codes(load_word(from), quad), codes[j][1] = word_codes(load_word(from + 8), quad);
    }
  } else {
    load_codes<T>(
        key, view.keys, steps, at, [&](const quant::LayoutPlane& p) { return key_words(p, rows.first, t); }, codes);
  }
  float c[4] = {};
#pragma unroll
  for (int j = 0; j < T; ++j) {
    if (j >= steps) continue;
    const uint32_t middle = words ? code_middle(word_quad(key, 4 * j + t).bits) : packed_middle;
    const uint2 a = levels ? level_halves(own.levels[0], codes[j][0]) : code_halves(codes[j][0], middle);
    const uint2 b = levels ? level_halves(own.levels[0], codes[j][1]) : code_halves(codes[j][1], middle);
    const uint4 q = own.query[j * 32 + lane];
    multiply(c, a.x, b.x, a.y, b.y, q.x, q.y);
    multiply(c, a.x, b.x, a.y, b.y, q.z, q.w);
    if (!by_token || (--left != 0 && j + 1 < steps)) continue;
    const float2 x = own.entries[group][at], y = own.entries[group][at + 2];
    const float2 sum = *reinterpret_cast<const float2*>(&own.sums[group][2 * t]);
    left = each, ++group;
    s[0] += x.x * c[0] + x.y * sum.x, s[1] += x.x * c[1] + x.y * sum.y;
    s[2] += y.x * c[2] + y.y * sum.x, s[3] += y.x * c[3] + y.y * sum.y;
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] = 0.0f;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) s[i] += c[i];
}

// Where a row of a tile is: the group of lanes, and which of their two rows. REQUIRES: row < 16.
struct TilePlace {
  uint32_t g;
  bool high;
};
TIERKV_DEVICE TilePlace tile_place(uint32_t row) { return {row / 4 * 2 + row % 2, row % 4 >= 2}; }

// Adds what the better rows among these 16 have more, from better_scores().
template <int T>
TIERKV_DEVICE void add_better_scores(const CodecDesc& codec, const ViewDesc& view, const TileRows& rows,
                                     const typename TileShared<T>::Warp& own, float (&s)[4]) {
  const uint32_t lane = threadIdx.x % 32, t = lane % 4;
  const uint8_t* const at = view.keys + padded_bytes(codec.key.bytes);
  for (uint32_t b = 0; b < codec.key_better; ++b) {
    const uint32_t row = better_index(at, codec.key_better, b) - rows.first;
    if (row >= 16) continue;
    const TilePlace place = tile_place(row);
    if (place.g != lane / 4) continue;
    const float2 more = *reinterpret_cast<const float2*>(better_terms<T>(own) + b * 8 + 2 * t);
    (place.high ? s[2] : s[0]) += more.x, (place.high ? s[3] : s[1]) += more.y;
  }
}

// And to the sums of values, with the rows' weights, in the codec's frame.
template <int T>
TIERKV_DEVICE void add_better_values(const CodecDesc& codec, const ViewDesc& view, const TileRows& rows, const float (&p)[4],
                                     TileState<T>& state) {
  const uint32_t lane = threadIdx.x % 32, channel = tile_position(lane / 4), dim = codec.value.head_dim;
  const uint8_t* const at = view.values + padded_bytes(codec.value.bytes);
  for (uint32_t b = 0; b < codec.value_better; ++b) {
    const uint32_t row = better_index(at, codec.value_better, b) - rows.first;
    if (row >= 16) continue;
    const TilePlace place = tile_place(row);
    const float x = __shfl_sync(~0u, place.high ? p[2] : p[0], place.g * 4 + lane % 4);
    const float y = __shfl_sync(~0u, place.high ? p[3] : p[1], place.g * 4 + lane % 4);
#pragma unroll
    for (int j = 0; j < T; ++j) {
      if (16 * j >= dim) continue;
      const float low = better_value(at, codec.value_better, b, 16 * j + channel, dim);
      const float high = better_value(at, codec.value_better, b, 16 * j + channel + 2, dim);
      state.values[j][0] = fmaf(x, low, state.values[j][0]), state.values[j][1] = fmaf(y, low, state.values[j][1]);
      state.values[j][2] = fmaf(x, high, state.values[j][2]), state.values[j][3] = fmaf(y, high, state.values[j][3]);
    }
  }
}

// Adds the weighted values of 16 rows of 16-bit floats.
template <int T>
TIERKV_DEVICE void add_plain(const quant::SideLayout& value, const ViewDesc& view, const TileRows& rows, const float (&p)[4],
                             TileState<T>& state) {
  const uint32_t low = transposed(pack_halves(p[0], p[1])), high = transposed(pack_halves(p[2], p[3]));
  uint2 v[T][2];
  load_rows<T>(view.values, rows, value.head_dim, value.bf16, v);
#pragma unroll
  for (int j = 0; j < T; ++j) {
    if (16 * j >= value.head_dim) continue;
    float c[4] = {};
    multiply(c, transposed(v[j][0].x), transposed(v[j][0].y), transposed(v[j][1].x), transposed(v[j][1].y), low, high);
#pragma unroll
    for (int i = 0; i < 4; ++i) state.values[j][i] += c[i];
  }
}

// What a row's offset adds to every channel, by head. A channel far from a row's largest is often offset and code that cancel: so
// the offset is measured in the weight that the codes are multiplied by, rounded as it is, unless codes hardly count beside it.
TIERKV_DEVICE void row_offsets(float2 entry, float2 rounded, float down, float p0, float p1, float& o0, float& o1) {
  if (fabsf(entry.y) <= 64.0f * fabsf(entry.x)) {
    const float ratio = entry.x == 0.0f ? 0.0f : entry.y / entry.x;
    o0 = rounded.x * ratio, o1 = rounded.y * ratio;
  } else {
    o0 = p0 * entry.y * down, o1 = p1 * entry.y * down;
  }
}

// And those of 16 rows of codes. A row that is not seen has no weight, whatever its scale is.
template <int T>
TIERKV_DEVICE void add_codes(const quant::SideLayout& value, const ViewDesc& view, const TileRows& rows, float unit,
                             const typename TileShared<T>::Warp& own, const float (&p)[4], TileState<T>& state) {
  const uint32_t lane = threadIdx.x % 32, at = tile_position(lane / 4), t = lane % 4, dim = value.head_dim;
  const uint32_t middle = code_middle(value.bits), each = value.groups == 1 ? dim / 16 : value.group / 16;
  uint32_t left = 0, group = 0;
  const bool levels = value.has_levels;
  const float down = 1.0f / unit;
  uint32_t codes[T][2], weights[2] = {}, offsets[2] = {}, rest[2] = {};
  load_codes<T>(
      value, view.values, dim / 16, at, [&](const quant::LayoutPlane& p) { return value_words(p, rows.first, t); }, codes);
#pragma unroll
  for (int j = 0; j < T; ++j) {
    if (16 * j >= dim) continue;
    if (left == 0) {
      const float2 x = own.entries[group][16 + at], y = own.entries[group][18 + at];
      left = each, ++group;
      const float f = rows.low ? x.x * down : 0.0f, g = rows.high ? y.x * down : 0.0f;
      const uint32_t low = pack_halves(p[0] * f, p[1] * f), high = pack_halves(p[2] * g, p[3] * g);
      weights[0] = transposed(low), weights[1] = transposed(high);
      float o[4];
      row_offsets(x, halves_of(low), rows.low ? down : 0.0f, p[0], p[1], o[0], o[1]);
      row_offsets(y, halves_of(high), rows.high ? down : 0.0f, p[2], p[3], o[2], o[3]);
      const uint32_t m = pack_halves(o[0], o[1]), n = pack_halves(o[2], o[3]);
      const float2 less_m = halves_of(m), less_n = halves_of(n);
      offsets[0] = transposed(m), offsets[1] = transposed(n);
      rest[0] = transposed(pack_halves(o[0] - less_m.x, o[1] - less_m.y));
      rest[1] = transposed(pack_halves(o[2] - less_n.x, o[3] - less_n.y));
    }
    const uint2 a = levels ? level_halves(own.levels[1], codes[j][0]) : code_halves(codes[j][0], middle);
    const uint2 b = levels ? level_halves(own.levels[1], codes[j][1]) : code_halves(codes[j][1], middle);
    constexpr uint32_t kOnes = 0x3C003C00u;
    float c[4] = {};
    --left;
    multiply(c, a.x, b.x, a.y, b.y, weights[0], weights[1]);
    multiply(c, kOnes, kOnes, kOnes, kOnes, offsets[0], offsets[1]);
    multiply(c, kOnes, kOnes, kOnes, kOnes, rest[0], rest[1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) state.values[j][i] = fmaf(c[i], unit, state.values[j][i]);
  }
}

// The warps' states become one, in the plain frame, and go where the merge will look.
template <int T>
TIERKV_DEVICE void end_tiles(const Launch& launch, const SegmentDesc& segment, uint32_t first_head, TileShared<T>& all,
                             const TileState<T>& state) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = tile_position(lane / 4), t = lane % 4,
                 dim = launch.head_dim;
  constexpr uint32_t kWarps = TileShared<T>::kWarps;
  auto& end = all.end;
  const float2 sum = over_rows(state.sum0, state.sum1);
  __syncthreads();
  if (lane < 4) end.tops[warp][2 * t] = state.top0, end.tops[warp][2 * t + 1] = state.top1;
  __syncthreads();
  float all0 = -INFINITY, all1 = -INFINITY;
  for (uint32_t w = 0; w < kWarps; ++w) all0 = fmaxf(all0, end.tops[w][2 * t]), all1 = fmaxf(all1, end.tops[w][2 * t + 1]);
  const float a0 = state.top0 == -INFINITY ? 0.0f : power2(state.top0 - all0);
  const float a1 = state.top1 == -INFINITY ? 0.0f : power2(state.top1 - all1);
  if (lane < 4) {
    end.totals[warp][2 * t] = sum.x * a0, end.totals[warp][2 * t + 1] = sum.y * a1;
    if (warp == 0) end.top[2 * t] = all0, end.top[2 * t + 1] = all1;
  }
#pragma unroll
  for (int j = 0; j < T; ++j) {
    float *const low = end.values[warp][2 * t] + 16 * j + at, *const high = end.values[warp][2 * t + 1] + 16 * j + at;
    low[0] = state.values[j][0] * a0, low[2] = state.values[j][2] * a0;
    high[0] = state.values[j][1] * a1, high[2] = state.values[j][3] * a1;
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < 8 * dim; i += blockDim.x) {
    const uint32_t head = i / dim, c = i % dim;
    float x = 0.0f;
#pragma unroll 4
    for (uint32_t w = 0; w < kWarps; ++w) x += end.values[w][head][c];
    end.result[c * 8 + head] = x;
    if (c != 0) continue;
    float total = 0.0f;
    for (uint32_t w = 0; w < kWarps; ++w) total += end.totals[w][head];
    end.sum[head] = total;
  }
  __syncthreads();
  store_partial(launch, segment, first_head, end.result, end.top, end.sum);
}

// All of a thread block's shared memory, as the general path has it. Asked for where it is used, so that the compiler knows what
// kind of memory it is.
template <int T>
TIERKV_DEVICE TileShared<T>& tile_shared() {
  return *reinterpret_cast<TileShared<T>*>(dynamic_shared());
}

template <int T>
TIERKV_DEVICE const CodecDesc& codec_at_hand(const typename TileShared<T>::Warp& own) {
  return *reinterpret_cast<const CodecDesc*>(own.codec);
}

// Asks for all bytes of a segment's views at once, so that no step has to wait for memory farther than the L2 cache.
TIERKV_DEVICE void prefetch_views(const Launch& launch, const SegmentDesc& segment) {
  constexpr uint32_t kLine = 128;
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t v = threadIdx.x / 32; v < segment.views; v += blockDim.x / 32) {
    const ViewDesc view = launch.views[segment.first_view + v];
    const CodecDesc& codec = launch.codecs[view.codec];
    const uint32_t rows = view.end * launch.head_dim * 2;
    const uint32_t key = codec.key.kind == quant::LayoutKind::rows16 ? rows : codec.key.bytes;
    const uint32_t value = codec.value.kind == quant::LayoutKind::rows16 ? rows : codec.value.bytes;
    for (uint32_t i = lane * kLine; i < key; i += 32 * kLine) prefetch_line(view.keys + i);
    for (uint32_t i = lane * kLine; i < value; i += 32 * kLine) prefetch_line(view.values + i);
  }
}

// The query for a view's codes, in shared memory; returns what every score begins with. A function of its own, so that its
// registers are not the loop's.
template <int T>
__device__ __noinline__ float2 prepare_query(const uint8_t* bytes, uint32_t position, uint32_t token_group, uint32_t warp) {
  TileShared<T>& all = tile_shared<T>();
  auto& own = all.warps[warp];
  const CodecDesc& codec = codec_at_hand<T>(own);
  const quant::SideLayout& key = codec.key;
  static_assert(quant::kMostLevels == 16);  // half a warp's lanes each
  const uint32_t lane = threadIdx.x % 32;
  own.levels[lane / 16][lane % 16] = __float2half((lane < 16 ? codec.key : codec.value).levels[lane % 16]);
  const bool words = key.kind == quant::LayoutKind::words;
  float x[T][4];
  float2 base;
  if (words) base = word_query<T>(key, position, all, own, x);
  else base = channel_query<T>(key, bytes, token_group, all, own, x);
  store_query<T>(x, (words ? key.components + 15 : key.head_dim) / 16, own);
  if (codec.key_better) better_scores<T>(codec, bytes, all, own);
  __syncwarp();
  return base;
}

// The query of eight rows of a group, [channel][row], and the signs of the frame.
template <int T>
TIERKV_DEVICE void load_query(const Launch& launch, const SegmentDesc& segment, uint32_t first_head, TileShared<T>& all) {
  const uint32_t dim = launch.head_dim, run = dim & (~dim + 1u);
  const float* queries = launch.queries + static_cast<size_t>(segment.first_row + first_head) * dim;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < dim * 8; i += blockDim.x) {
    const uint32_t head = i / dim, c = i % dim;
    all.rows[c * 8 + head] = first_head + head < launch.group ? queries[i] * (launch.scale * kLog2E) : 0.0f;
  }
  for (uint32_t c = threadIdx.x; c < 16 * T; c += blockDim.x) all.signs[c] = frame_sign(dim, c) * rsqrtf(static_cast<float>(run));
  __syncthreads();
}

// Scores of 16 rows and of this lane's two heads.
template <int T>
TIERKV_DEVICE void score_rows(const CodecDesc& codec, const ViewDesc& view, const TileRows& rows, float2 base,
                              const typename TileShared<T>::Warp& own, float (&s)[4]) {
  s[0] = s[2] = base.x, s[1] = s[3] = base.y;
  if (codec.key.kind == quant::LayoutKind::rows16) score_plain<T>(codec.key, view, rows, own, s);
  else score_codes<T>(codec.key, view, rows, own, s);
  if (codec.key_better) add_better_scores<T>(codec, view, rows, own, s);
}

// A codec in the warp's own shared memory. `known`: the one that is there.
template <int T>
TIERKV_DEVICE const CodecDesc& hold_codec(const Launch& launch, uint32_t codec, uint32_t& known,
                                          typename TileShared<T>::Warp& own) {
  if (codec != known) {
    __syncwarp();
    for (uint32_t i = threadIdx.x % 32; i < sizeof(CodecDesc) / 4; i += 32)
      reinterpret_cast<uint32_t*>(own.codec)[i] = __ldg(reinterpret_cast<const uint32_t*>(launch.codecs + codec) + i);
    __syncwarp();
    known = codec;
  }
  return codec_at_hand<T>(own);
}

// Eight rows of a group over all views of a segment.
template <int T>
TIERKV_DEVICE void attend_tiles(const Launch& launch, const SegmentDesc& segment, uint32_t first_head) {
  const uint32_t at = tile_position(threadIdx.x % 32 / 4), warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  TileShared<T>& all = tile_shared<T>();
  if (first_head == 0) prefetch_views(launch, segment);
  load_query<T>(launch, segment, first_head, all);
  auto& own = all.warps[warp];
  TileState<T> state;
  float2 base = {0.0f, 0.0f};
  uint32_t chunk = 0, known = UINT32_MAX;  // the codec at hand
  uint32_t ready = UINT32_MAX;             // the view, and the group of tokens, that the query is ready for
  for (uint32_t v = 0; v < segment.views; ++v) {
    const ViewDesc view = launch.views[segment.first_view + v];
    for (uint32_t from = view.begin / launch.chunk_rows * launch.chunk_rows; from < view.end; from += launch.chunk_rows, ++chunk) {
      if (chunk % TileShared<T>::kWarps != warp) continue;
      const CodecDesc& codec = hold_codec<T>(launch, view.codec, known, own);
      const bool grouped = codec.key.kind == quant::LayoutKind::packed && codec.key.by_channel && codec.key.groups != 1;
#pragma unroll 1
      for (uint32_t first = from; first < min(from + launch.chunk_rows, static_cast<uint32_t>(view.end)); first += 16) {
        const TileRows rows{first, sees_row(launch, view, first + at), sees_row(launch, view, first + at + 2)};
        if (!__any_sync(~0u, rows.low || rows.high)) continue;
        const uint32_t group = grouped ? first / codec.key.group : 0, wanted = v * 16 + group;
        const float unit = load_entries<T>(codec, view, first, own);
        if (ready != wanted) {
          base = prepare_query<T>(view.keys, view.first_position, group, warp);
          ready = wanted;
        }
        float s[4];
        score_rows<T>(codec, view, rows, base, own, s);
        const bool rotated = codec.value.hadamard != 0;
        weigh_rows(launch, rows.low, rows.high, state, s);
        if (!state.empty && rotated != state.rotated) transform<T>(state.values, all.signs, launch.head_dim, rotated);
        state.rotated = rotated, state.empty = false;
        if (codec.value.kind == quant::LayoutKind::rows16) add_plain<T>(codec.value, view, rows, s, state);
        else add_codes<T>(codec.value, view, rows, unit, own, s, state);
        if (codec.value_better) add_better_values<T>(codec, view, rows, s, state);
      }
    }
  }
  if (state.rotated) transform<T>(state.values, all.signs, launch.head_dim, false);
  end_tiles<T>(launch, segment, first_head, all, state);
}

// By value and by number, so that the caller keeps nothing in memory for it. A thread block of compute capability 9.0 fetches this
// code anew in every launch, so that there should be little of it.
template <int T>
__device__ __noinline__ void tiles_segment(Launch launch, uint32_t index) {
  const SegmentDesc segment = launch.segments[index];
#pragma unroll 1
  for (uint32_t first = 0; first < launch.group; first += 8) attend_tiles<T>(launch, segment, first);
  finish_segment(launch, segment, dynamic_shared(), sizeof(TileShared<T>));
}

}  // namespace tierkv::cuda
