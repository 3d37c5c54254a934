// general.cuh — attention of one thread block over one segment, for every codec that has a layout and every shape: plain arithmetic
// in 32-bit floats, no tensor cores.
//
// Teams of 128 threads (256 where heads are wider, or groups larger) take a view each, so that one team's waits are another's work:
// the query in the codec's terms; scores, a token a thread and the channels shared among threads; softmax; values, a channel a
// thread and the tokens shared among threads. What a thread has summed of its channel stays in registers for the whole segment; in
// the end the teams' states become one. Queries and weights lie [channel or token][row of the group], so that a thread reads all
// rows' with one wide load.
#pragma once

#include "cuda/desc.h"
#include "cuda/reading.h"

namespace tierkv::cuda {

inline constexpr uint32_t kThreads = 512;
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr uint32_t kMostDim = 256, kMostRows = 256;

inline constexpr uint32_t kMostTeams = 4;

// What one team needs. R: rows of a group, rounded up to 4, 8 or 16.
template <uint32_t R>
struct TeamShared {
  static constexpr uint32_t kParts = 2;  // threads that share a token's channels
  float query[kMostDim * R];             // in the codec's terms
  float sums[kMostDim / 16 * R];         // of `query` over every 16 channels
  float weights[kMostRows * R];
  float shared[kParts * kMostRows * R];                   // scores of the parts
  float value_scale[kMostRows], value_offset[kMostRows];  // where values have one group of channels
  float base[R], top[R], sum[R], shrink[R];
  alignas(16) uint8_t codec[sizeof(CodecDesc)];  // of the view at hand: its fields are read all the time
};

template <uint32_t R>
struct GeneralShared {
  static constexpr uint32_t kTeams = R > 8 ? 2 : kMostTeams;
  float plain[kMostDim * R], rotated[kMostDim * R];  // queries, scaled, in both frames; in the end the values
  float top[R], sum[R];
  TeamShared<R> teams[kTeams];
};

// The threads that work on one view. A barrier of their own lets the other teams go on.
struct Team {
  uint32_t barrier, thread, threads;
  __device__ void sync() const { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }
};

// Signs, then a Walsh–Hadamard transform of each run of channels (forward), or the transform and then the signs.
template <uint32_t R>
__device__ void rotate(const Team& team, float* rows, uint32_t dim, bool forward) {
  const uint32_t run = dim & (~dim + 1u);
  const float norm = rsqrtf(static_cast<float>(run));
  for (uint32_t i = team.thread; forward && i < dim * R; i += team.threads) rows[i] *= frame_sign(dim, i / R) * norm;
  team.sync();
  for (uint32_t half = 1; half < run; half *= 2) {
    for (uint32_t i = team.thread; i < dim / 2 * R; i += team.threads) {
      const uint32_t pair = i / R, row = i % R;
      const uint32_t low = ((pair / half * 2 * half) + pair % half) * R + row, high = low + half * R;
      const float a = rows[low], b = rows[high];
      rows[low] = a + b, rows[high] = a - b;
    }
    team.sync();
  }
  for (uint32_t i = team.thread; !forward && i < dim * R; i += team.threads) rows[i] *= frame_sign(dim, i / R) * norm;
  team.sync();
}

// All threads of a thread block.
__device__ inline Team everybody() { return {0, threadIdx.x, kThreads}; }

// The queries of a segment in both frames.
struct Queries {
  const float *plain, *rotated;
};

// Adds the sum over channels c < dim of a(c)·b(c, row) to base[row], a warp a row.
template <uint32_t R, class A, class B>
__device__ void add_to_base(const Team& team, float* base, uint32_t group, uint32_t dim, const A& a, const B& b) {
  const uint32_t warp = team.thread / 32, lane = team.thread % 32;
  for (uint32_t row = warp; row < group; row += team.threads / 32) {
    float sum = 0.0f;
    for (uint32_t c = lane; c < dim; c += 32) sum += a(c) * b(c, row);
    for (uint32_t d = 16; d != 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (lane == 0) base[row] += sum;
  }
}

// klt: the query turned by -s0, then its products with the rows; what the middles of the codes and the mean add to every score.
template <uint32_t R>
__device__ void query_of_words(const quant::SideLayout& key, uint32_t position, uint32_t group, const Team& team,
                               const Queries& queries, TeamShared<R>& s) {
  const uint32_t dim = key.head_dim;
  float* turned = s.shared;  // free until scores are written
  for (uint32_t i = team.thread; i < dim * R; i += team.threads) turned[i] = queries.plain[i];
  team.sync();
  for (uint32_t i = team.thread; i < key.pairs * R; i += team.threads) {
    const uint32_t p = i / R, row = i % R, a = key.turned[2 * p], b = key.turned[2 * p + 1];
    float cosine, sine;
    turn_of(key, position, p, cosine, sine);
    const float x = queries.plain[a * R + row], y = queries.plain[b * R + row];
    turned[a * R + row] = x * cosine + y * sine;
    turned[b * R + row] = y * cosine - x * sine;
  }
  team.sync();
  for (uint32_t i = team.thread; i < key.components * R; i += team.threads) {
    const uint32_t j = i / R, row = i % R;
    float sum = 0.0f;
    for (uint32_t c = 0; c < dim; ++c) sum += half_value(key.rows[j * dim + c]) * turned[c * R + row];
    s.query[i] = sum;
  }
  team.sync();
  add_to_base<R>(
      team, s.base, group, dim, [&](uint32_t c) { return key.mean[c]; }, [&](uint32_t c, uint32_t r) { return turned[c * R + r]; });
  team.sync();
  add_to_base<R>(
      team, s.base, group, key.components, [&](uint32_t j) { return -middle_of(key, j); },
      [&](uint32_t j, uint32_t r) { return s.query[j * R + r]; });
  team.sync();
}

// The query in the terms of a packed side's codes, for one run of tokens where scales belong to channels.
template <uint32_t R>
__device__ void query_of_packed(const quant::SideLayout& key, const uint8_t* bytes, uint32_t token_group, uint32_t group,
                                const Team& team, const Queries& queries, TeamShared<R>& s) {
  const uint32_t dim = key.head_dim;
  const float* from = key.hadamard && !key.even ? queries.rotated : queries.plain;
  for (uint32_t i = team.thread; i < dim * R; i += team.threads) {
    s.query[i] = key.even ? queries.plain[i] * channel_terms(key, bytes, i / R).factor : from[i];
  }
  if (team.thread < R) s.base[team.thread] = 0.0f;
  team.sync();
  if (key.even && key.hadamard) rotate<R>(team, s.query, dim, true);
  if (key.mean_at != 0) {
    add_to_base<R>(
        team, s.base, group, dim, [&](uint32_t c) { return channel_terms(key, bytes, c).mean; },
        [&](uint32_t c, uint32_t r) { return from[c * R + r]; });
  }
  team.sync();
  if (key.by_channel) {
    const uint32_t entries = key.groups * dim;
    add_to_base<R>(
        team, s.base, group, dim,
        [&](uint32_t c) { return meta_entry(key, bytes + key.meta_at, token_group * dim + c, entries).offset; },
        [&](uint32_t c, uint32_t r) { return from[c * R + r]; });
    team.sync();
    for (uint32_t i = team.thread; i < dim * R; i += team.threads) {
      s.query[i] *= meta_entry(key, bytes + key.meta_at, token_group * dim + i / R, entries).scale;
    }
    team.sync();
    return;
  }
  for (uint32_t i = team.thread; i < dim / 16 * R; i += team.threads) {
    float sum = 0.0f;
    for (uint32_t c = 0; c < 16; ++c) sum += s.query[(i / R * 16 + c) * R + i % R];
    s.sums[i] = sum;
  }
  team.sync();
}

template <uint32_t R>
__device__ __forceinline__ void multiply_row(float x, const float* row, float (&acc)[R]) {
#pragma unroll
  for (uint32_t i = 0; i < R; i += 4) {
    const float4 q = *reinterpret_cast<const float4*>(row + i);
    acc[i] += x * q.x, acc[i + 1] += x * q.y, acc[i + 2] += x * q.z, acc[i + 3] += x * q.w;
  }
}

// Eight neighbouring 16-bit floats.
__device__ __forceinline__ void load_eight(const uint16_t* from, bool bf16, float (&out)[8]) {
  const uint4 v = *reinterpret_cast<const uint4*>(from);
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] = short_value(static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16)), bf16);
}

// What `part` of `parts` threads adds to the scores of one token, without the base. Loops are not unrolled: see reading.h.
template <uint32_t R>
__device__ void part_of_scores(const quant::SideLayout& key, const uint8_t* bytes, uint32_t token, uint32_t part, uint32_t parts,
                               const TeamShared<R>& s, float (&acc)[R]) {
  const uint32_t dim = key.head_dim;
  if (key.kind == quant::LayoutKind::rows16) {
    const uint16_t* row = reinterpret_cast<const uint16_t*>(bytes) + token * dim;
#pragma unroll 1
    for (uint32_t c = part * 8; c < dim; c += parts * 8) {
      float x[8];
      load_eight(row + c, key.bf16, x);
#pragma unroll
      for (uint32_t k = 0; k < 8; ++k) multiply_row<R>(x[k], s.query + (c + k) * R, acc);
    }
    return;
  }
  const bool words = key.kind == quant::LayoutKind::words, by_token = !words && !key.by_channel;
  const uint32_t quads = (words ? key.components : dim) / kQuad, entries = key.groups * key.tokens;
  const bool one = key.groups == 1;
  ScaleOffset grid{1.0f, 0.0f};
  if (by_token && one) grid = meta_entry(key, bytes + key.meta_at, token, entries);
    // Runs of 16 positions, which never straddle a group.
#pragma unroll 1
  for (uint32_t run = part; run * 4 < quads; run += parts) {
    float sums[R] = {};
#pragma unroll 1
    for (uint32_t quad = run * 4; quad < min(quads, run * 4 + 4); ++quad) {
      float x[kQuad];
      if (words) unpack_components(key, bytes, token, quad, x);
      else unpack_quad(key, bytes, token, quad, x);
#pragma unroll
      for (uint32_t k = 0; k < kQuad; ++k) multiply_row<R>(x[k], s.query + (quad * kQuad + k) * R, sums);
    }
    if (by_token && !one) grid = meta_entry(key, bytes + key.meta_at, run * 16 / key.group * key.tokens + token, entries);
#pragma unroll
    for (uint32_t i = 0; i < R; ++i) acc[i] += grid.scale * sums[i];
    if (by_token) multiply_row<R>(grid.offset, s.sums + run * R, acc);
  }
}

// Scores of rows from..to-1 into weights, [token][row], the base included.
template <uint32_t R>
__device__ void score_rows(const quant::SideLayout& key, const uint8_t* bytes, uint32_t from, uint32_t to, const Team& team,
                           TeamShared<R>& s) {
  const uint32_t width = min((to - from + 15) / 16 * 16, team.threads);
  const uint32_t parts = min(team.threads / width, TeamShared<R>::kParts), part = team.thread / width;
  for (uint32_t token = from + team.thread % width; part < parts && token < to; token += width) {
    float acc[R] = {};
    part_of_scores<R>(key, bytes, token, part, parts, s, acc);
#pragma unroll
    for (uint32_t i = 0; i < R; ++i) s.shared[(part * kMostRows + token) * R + i] = acc[i];
  }
  team.sync();
  for (uint32_t i = team.thread; i < (to - from) * R; i += team.threads) {
    float sum = s.base[i % R];
    for (uint32_t p = 0; p < parts; ++p) sum += s.shared[(p * kMostRows + from) * R + i];
    s.weights[from * R + i] = sum;
  }
  team.sync();
}

template <uint32_t R>
__device__ void score_view(const Launch& launch, const quant::SideLayout& key, const ViewDesc& view, const Team& team,
                           const Queries& queries, TeamShared<R>& s) {
  if (key.kind == quant::LayoutKind::packed && key.by_channel) {
    for (uint32_t g = view.begin / key.group; g * key.group < view.end; ++g) {
      query_of_packed<R>(key, view.keys, g, launch.group, team, queries, s);
      const uint32_t from = max(static_cast<uint32_t>(view.begin), g * key.group);
      score_rows<R>(key, view.keys, from, min(static_cast<uint32_t>(view.end), (g + 1) * key.group), team, s);
    }
    return;
  }
  if (key.kind == quant::LayoutKind::packed) {
    query_of_packed<R>(key, view.keys, 0, launch.group, team, queries, s);
  } else {
    if (team.thread < R) s.base[team.thread] = 0.0f;
    team.sync();
    if (key.kind == quant::LayoutKind::words) {
      query_of_words<R>(key, view.first_position, launch.group, team, queries, s);
    } else {
      const float* from = key.hadamard ? queries.rotated : queries.plain;
      for (uint32_t i = team.thread; i < key.head_dim * R; i += team.threads) s.query[i] = from[i];
      team.sync();
    }
  }
  score_rows<R>(key, view.keys, view.begin, view.end, team, s);
}

__device__ __forceinline__ bool seen(const Launch& launch, const ViewDesc& view, uint32_t row) {
  return view.mask == kNoMask || (launch.masks[view.mask * kMaskWords + row / 32] >> (row % 32) & 1u) != 0;
}

// Scores become weights against the running maximum, in powers of two; `shrink` is what sums so far are to be multiplied by.
template <uint32_t R>
__device__ void weigh(const Launch& launch, const ViewDesc& view, const Team& team, TeamShared<R>& s) {
  const uint32_t warp = team.thread / 32, lane = team.thread % 32;
  for (uint32_t row = warp; row < R; row += team.threads / 32) {
    float score[kMostRows / 32], top = -INFINITY;
#pragma unroll
    for (uint32_t k = 0; k < kMostRows / 32; ++k) {
      const uint32_t t = k * 32 + lane;
      score[k] = -INFINITY;
      if (row >= launch.group || t < view.begin || t >= view.end || !seen(launch, view, t)) continue;
      float x = s.weights[t * R + row];
      if (launch.softcap > 0.0f) x = launch.softcap * tanhf(x / launch.softcap);
      score[k] = x * kLog2E;
      // A score that is not a number must not vanish in a maximum: it has to reach the sum.
      top = score[k] <= top ? top : score[k];
    }
    for (uint32_t d = 16; d != 0; d /= 2) {
      const float other = __shfl_xor_sync(~0u, top, d);
      top = other <= top ? top : other;
    }
    const float old = s.top[row];
    top = top <= old ? old : top;
    float sum = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < kMostRows / 32; ++k) {
      const uint32_t t = k * 32 + lane;
      const float weight = score[k] == -INFINITY ? 0.0f : exp2f(score[k] - top);
      sum += weight;
      if (t < kMostRows) s.weights[t * R + row] = weight;
    }
    for (uint32_t d = 16; d != 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (lane == 0) {
      const float shrink = old == -INFINITY ? 0.0f : exp2f(old - top);
      s.shrink[row] = shrink;
      s.sum[row] = s.sum[row] * shrink + sum;
      s.top[row] = top;
    }
  }
  team.sync();
}

// Adds the weighted values of one view's rows, those of one channel and of every `parts`-th run of tokens.
template <uint32_t R>
__device__ void add_values(const quant::SideLayout& value, const ViewDesc& view, uint32_t channel, uint32_t part, uint32_t parts,
                           const TeamShared<R>& s, float (&acc)[R]) {
  if (value.kind == quant::LayoutKind::rows16) {
    const uint16_t* rows = reinterpret_cast<const uint16_t*>(view.values);
    for (uint32_t t = view.begin + part; t < view.end; t += parts) {
      multiply_row<R>(short_value(rows[t * value.head_dim + channel], value.bf16), s.weights + t * R, acc);
    }
    return;
  }
  const uint32_t first = channel / value.group * value.tokens, entries = value.groups * value.tokens;
#pragma unroll 1
  for (uint32_t quad = view.begin / kQuad + part; quad * kQuad < view.end; quad += parts) {
    float levels[kQuad];
    unpack_quad(value, view.values, channel, quad, levels);
#pragma unroll
    for (uint32_t k = 0; k < kQuad; ++k) {
      const uint32_t t = quad * kQuad + k;  // rows that are not seen have no weight
      ScaleOffset grid{s.value_scale[t], s.value_offset[t]};
      if (value.groups != 1) grid = meta_entry(value, view.values + value.meta_at, first + t, entries);
      multiply_row<R>(levels[k] * grid.scale + grid.offset, s.weights + t * R, acc);
    }
  }
}

template <uint32_t R>
__device__ void load_value_grids(const quant::SideLayout& value, const uint8_t* bytes, const Team& team, TeamShared<R>& s) {
  if (value.kind != quant::LayoutKind::packed || value.groups != 1) return;
  for (uint32_t i = team.thread; i < value.tokens; i += team.threads) {
    const ScaleOffset grid = meta_entry(value, bytes + value.meta_at, i, value.tokens);
    s.value_scale[i] = grid.scale, s.value_offset[i] = grid.offset;
  }
}

// The state of a segment goes where the merge will look for it.
template <uint32_t R>
__device__ void store_partial(const Launch& launch, const SegmentDesc& segment, const float* values, const float* top,
                              const float* sum) {
  const uint32_t dim = launch.head_dim;
  float* out = launch.partial_out + static_cast<size_t>(segment.partial) * launch.group * dim;
  for (uint32_t i = threadIdx.x; i < launch.group * dim; i += blockDim.x) out[i] = values[i % dim * R + i / dim];
  if (threadIdx.x < launch.group) {
    launch.partial_top[segment.partial * launch.group + threadIdx.x] = top[threadIdx.x];
    launch.partial_sum[segment.partial * launch.group + threadIdx.x] = sum[threadIdx.x];
  }
}

// One state out of the teams': values in both frames where the queries were, the maximum and the sum of each row.
template <uint32_t R>
__device__ void join_teams(GeneralShared<R>& all, uint32_t teams, uint32_t mine, uint32_t channel, uint32_t part, uint32_t parts,
                           const float (&plain)[R], const float (&rotated)[R]) {
  if (threadIdx.x < R) {
    float top = -INFINITY, sum = 0.0f;
    for (uint32_t t = 0; t < teams; ++t) top = all.teams[t].top[threadIdx.x] <= top ? top : all.teams[t].top[threadIdx.x];
    for (uint32_t t = 0; t < teams; ++t) {
      TeamShared<R>& one = all.teams[t];
      one.shrink[threadIdx.x] = one.top[threadIdx.x] == -INFINITY ? 0.0f : exp2f(one.top[threadIdx.x] - top);
      sum += one.sum[threadIdx.x] * one.shrink[threadIdx.x];
    }
    all.top[threadIdx.x] = top, all.sum[threadIdx.x] = sum;
  }
  __syncthreads();
  for (uint32_t turn = 0; turn < teams * parts; ++turn) {
    if (part < parts && mine * parts + part == turn) {
#pragma unroll
      for (uint32_t i = 0; i < R; ++i) {
        const float share = all.teams[mine].shrink[i];
        float &to = all.plain[channel * R + i], &other = all.rotated[channel * R + i];
        to = (turn == 0 ? 0.0f : to) + plain[i] * share;
        other = (turn == 0 ? 0.0f : other) + rotated[i] * share;
      }
    }
    __syncthreads();
  }
}

// Asks for all bytes of a segment's views at once, so that no step has to wait for memory farther than the L2 cache.
__device__ inline void prefetch_views(const Launch& launch, const SegmentDesc& segment) {
  constexpr uint32_t kLine = 128;
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t v = threadIdx.x / 32; v < segment.views; v += kThreads / 32) {
    const ViewDesc& view = launch.views[segment.first_view + v];
    const CodecDesc& codec = launch.codecs[view.codec];
    const uint32_t key = codec.key.kind == quant::LayoutKind::rows16 ? view.end * codec.key.head_dim * 2 : codec.key.bytes;
    const uint32_t value = codec.value.kind == quant::LayoutKind::rows16 ? view.end * codec.value.head_dim * 2 : codec.value.bytes;
    for (uint32_t i = lane * kLine; i < key; i += 32 * kLine) asm("prefetch.global.L2 [%0];" ::"l"(view.keys + i));
    for (uint32_t i = lane * kLine; i < value; i += 32 * kLine) asm("prefetch.global.L2 [%0];" ::"l"(view.values + i));
  }
}

template <uint32_t R>
__device__ void attend_general(const Launch& launch, const SegmentDesc& segment, uint8_t* memory) {
  auto& all = *reinterpret_cast<GeneralShared<R>*>(memory);
  const uint32_t dim = launch.head_dim, group = launch.group;
  prefetch_views(launch, segment);
  const float* rows = launch.queries + static_cast<size_t>(segment.first_row) * dim;
  for (uint32_t i = threadIdx.x; i < dim * R; i += kThreads) {
    const uint32_t c = i / R, row = i % R;
    all.plain[i] = all.rotated[i] = row < group ? rows[row * dim + c] * launch.scale : 0.0f;
  }
  __syncthreads();
  rotate<R>(everybody(), all.rotated, dim, true);

  const uint32_t threads = dim > 128 || R > 8 ? 256 : 128, teams = kThreads / threads, mine = threadIdx.x / threads;
  const Team team{mine + 1, threadIdx.x % threads, threads};
  TeamShared<R>& s = all.teams[mine];
  const Queries queries{all.plain, all.rotated};
  if (team.thread < R) s.top[team.thread] = -INFINITY, s.sum[team.thread] = 0.0f;
  team.sync();
  const uint32_t channel = team.thread % dim, part = team.thread / dim, parts = threads / dim;
  float plain[R] = {}, rotated[R] = {};  // sums of values in either frame
  for (uint32_t v = mine; v < segment.views; v += teams) {
    const ViewDesc view = launch.views[segment.first_view + v];
    for (uint32_t i = team.thread; i < sizeof(CodecDesc) / 4; i += threads)
      reinterpret_cast<uint32_t*>(s.codec)[i] = reinterpret_cast<const uint32_t*>(launch.codecs + view.codec)[i];
    team.sync();
    const CodecDesc& codec = *reinterpret_cast<const CodecDesc*>(s.codec);
    score_view<R>(launch, codec.key, view, team, queries, s);
    load_value_grids<R>(codec.value, view.values, team, s);
    weigh<R>(launch, view, team, s);
#pragma unroll
    for (uint32_t i = 0; i < R; ++i) plain[i] *= s.shrink[i], rotated[i] *= s.shrink[i];
    if (part < parts) {
      if (codec.value.hadamard) add_values<R>(codec.value, view, channel, part, parts, s, rotated);
      else add_values<R>(codec.value, view, channel, part, parts, s, plain);
    }
    team.sync();
  }
  __syncthreads();
  join_teams<R>(all, teams, mine, channel, part, parts, plain, rotated);
  rotate<R>(everybody(), all.rotated, dim, false);
  for (uint32_t i = threadIdx.x; i < dim * R; i += kThreads) all.plain[i] += all.rotated[i];
  __syncthreads();
  store_partial<R>(launch, segment, all.plain, all.top, all.sum);
}

}  // namespace tierkv::cuda
