// plain.cuh — rows of halves, as hot tiers and sinks have them, straight out of far memory: beside.cuh's four warps take 16 rows
// each at a time, and nothing of theirs goes through shared memory. Heads of 64 and 128 channels, any run of rows, any group.
// Compute capability 8.0.
//
// Scores:   S = K·Q^T, the query two halves a number, so that nothing is rounded but the rows. The order in which a product takes
//           channels is free, so a lane takes eight neighbours: channels 32j + 8t .. are its share of products 2j and 2j+1.
// Values:   O^T += V^T·P. Which row of a tile is which number of a product is free too: a lane has rows 4t .. 4t+3.
#pragma once

#include "cuda/decode/beside.cuh"

namespace tierkv::cuda {

// The query of head `first_head + lane / 4` as operands: what halves hold of it, then what they left over. A warp has some steps.
template <uint32_t D>
TIERKV_DEVICE void load_plain_query(const Launch& launch, const SegmentDesc& segment, uint32_t first_head, uint32_t query) {
  const uint32_t lane = threadIdx.x % 32, head = first_head + lane / 4, t = lane % 4;
  const float scale = head < launch.group ? launch.scale * kLog2E : 0.0f;
  const auto* const from =
      reinterpret_cast<const float4*>(launch.queries + (segment.first_row + min(head, launch.group - 1)) * size_t{D});
  for (uint32_t j = threadIdx.x / 32; j < D / 16; j += kBesideWarps) {
    const float4 q = __ldg(from + j / 2 * 8 + 2 * t + j % 2);
    const float x[4] = {q.x * scale, q.y * scale, q.z * scale, q.w * scale};
    uint32_t high[2], low[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      high[i] = pack_halves(x[2 * i], x[2 * i + 1]);
      const float2 held = halves_of(high[i]);
      low[i] = pack_halves(x[2 * i] - held.x, x[2 * i + 1] - held.y);
    }
    store2(query + (j * 32 + lane) * 8, high[0], high[1]);
    store2(query + D / 16 * 256 + (j * 32 + lane) * 8, low[0], low[1]);
  }
}

// Scores of 16 rows of a view from `first` on, rows 2g and 2g+1; rows behind the last are the last, and not seen.
template <uint32_t D>
TIERKV_DEVICE void plain_scores(const Launch& launch, const ViewDesc& view, uint32_t first, uint32_t query, float (&s)[4]) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, last = view.end - 1u;
  const auto row = [&](uint32_t i) {
    return reinterpret_cast<const uint4*>(view.keys + size_t{min(first + i, last)} * (2 * D)) + t;
  };
  const uint4 *const even = row(2 * g), *const odd = row(2 * g + 1);
  float rest[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) s[i] = 0.0f;
#pragma unroll
  for (uint32_t j = 0; j < D / 32; ++j) {
    const uint4 u = __ldg(even + 4 * j), v = __ldg(odd + 4 * j);
    const uint32_t at = query + (2 * j * 32 + lane) * 8;
    const uint2 a = load2(at), b = load2(at + 256), c = load2(at + D / 16 * 256), d = load2(at + D / 16 * 256 + 256);
    multiply(s, u.x, v.x, u.y, v.y, a.x, a.y);
    multiply(rest, u.x, v.x, u.y, v.y, c.x, c.y);
    multiply(s, u.z, v.z, u.w, v.w, b.x, b.y);
    multiply(rest, u.z, v.z, u.w, v.w, d.x, d.y);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) s[i] += rest[i];
  cap_scores(launch, sees_row(launch, view, first + 2 * g), sees_row(launch, view, first + 2 * g + 1), s);
}

// Where a tile's values are, for all warps: the first row's place in far memory, and how many rows follow it.
TIERKV_DEVICE void share_tile(uint32_t at, const uint8_t* values, uint32_t more) {
  const auto address = reinterpret_cast<uintptr_t>(values);
  if (threadIdx.x % 32 != 0) return;
  store2(at, static_cast<uint32_t>(address), static_cast<uint32_t>(static_cast<uint64_t>(address) >> 32));
  store1(at + 8, more);
}

// Adds this warp's channels of a tile.
template <uint32_t D>
TIERKV_DEVICE void add_plain_values(float (&sums)[2][4], uint32_t tile_at, uint32_t weights) {
  using S = BesideShape<D>;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const uint2 address = load2(tile_at);
  if ((address.x | address.y) == 0) return;
  const uint32_t more = load1(tile_at + 8);
  const auto* const values =
      reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(static_cast<uint64_t>(address.y) << 32 | address.x));
  const uint8_t* const from = values + warp % S::kParts * 64 + g * 8;
  uint2 rows[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) rows[i] = __ldg(reinterpret_cast<const uint2*>(from + size_t{min(4 * t + i, more)} * (2 * D)));
  const uint32_t p0 = load1(weights + t * 4), p1 = load1(weights + t * 4 + 128);
  const auto add = [&](float(&to)[4], uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    multiply(to, __byte_perm(a, c, 0x5410), __byte_perm(a, c, 0x7632), __byte_perm(b, d, 0x5410), __byte_perm(b, d, 0x7632), p0,
             p1);
  };
  add(sums[0], rows[0].x, rows[1].x, rows[2].x, rows[3].x);
  add(sums[1], rows[0].y, rows[1].y, rows[2].y, rows[3].y);
}

// Up to eight rows of a group over all views of a segment.
template <uint32_t D>
TIERKV_DEVICE void attend_plain(const Launch& launch, const SegmentDesc& segment, uint32_t first_head, uint8_t* shared) {
  using S = BesideShape<D>;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, memory = shared_address(shared);
  const ViewDesc* const views = launch.views + segment.first_view;
  const auto tiles_of = [](const ViewDesc& view) { return (view.end + 15u) / 16 - view.begin / 16; };
  uint32_t tiles = 0;
  for (uint32_t v = 0; v < segment.views; ++v) tiles += tiles_of(views[v]);
  load_plain_query<D>(launch, segment, first_head, memory + S::kQuery);
  __syncthreads();
  BesideState state;
  uint32_t v = 0, own = warp;  // this warp's tile, of view v
#pragma unroll 1
  for (uint32_t done = 0; done < tiles; done += kBesideWarps, own += kBesideWarps) {
    const uint32_t places = memory + S::kSums + done / kBesideWarps % 2 * (kBesideWarps * 16);
    float s[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    if (done + warp < tiles) {
      while (own >= tiles_of(views[v])) own -= tiles_of(views[v++]);
      const ViewDesc view = views[v];
      const uint32_t first = (view.begin / 16u + own) * 16, more = min(15u, view.end - 1u - first);
      const uint8_t* const values = view.values + size_t{first} * (2 * D);
      if (lane * 128 < (more + 1) * 2 * D) prefetch_line(values + lane * 128);
      share_tile(places + warp * 16, values, more);
      plain_scores<D>(launch, view, first, memory + S::kQuery, s);
    } else {
      share_tile(places + warp * 16, nullptr, 0);
    }
    share_tops(memory + S::kTops, s);
    __syncthreads();
    state.raise(memory + S::kTops);
    const float n0 = kBesideUp - state.top0, n1 = kBesideUp - state.top1;
    const uint32_t even = pack_halves(power2(s[0] + n0), power2(s[1] + n1)),
                   odd = pack_halves(power2(s[2] + n0), power2(s[3] + n1));
    const float2 x = halves_of(even), y = halves_of(odd);
    state.total0 += x.x + y.x, state.total1 += x.y + y.y;
    store_weights(memory + S::kWeights, even, odd);
    __syncthreads();
    float sums[2][4] = {};  // tensor cores round down
#pragma unroll
    for (uint32_t i = 0; i < kBesideWarps / S::kSplit; ++i) {
      const uint32_t tile = warp / S::kParts * (kBesideWarps / S::kSplit) + i;
      add_plain_values<D>(sums, places + tile * 16, memory + S::kWeights + tile * 256 + (lane / 4 + 2 * tile) % 8 * 16);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) state.sums[i / 4][i % 4] += sums[i / 4][i % 4];
  }
  end_beside<D>(launch, segment, first_head, state, 1.0f, false, shared);
  __syncthreads();
}

}  // namespace tierkv::cuda
