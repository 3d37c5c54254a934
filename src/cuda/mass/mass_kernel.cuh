// mass_kernel.cuh — what rows received: scores once more, in the way of the general path (tiles.cuh), against the sums that
// attention wrote. Keys alone are read. Compute capability 8.0.
//
// A warp takes chunk_rows rows of a view, 16 in one go, and eight query heads. A row's weights of eight heads are in four lanes;
// what they add up to is written once, and where a group is larger its other heads are added by the same lane.
#pragma once

#include "cuda/decode/tiles.cuh"
#include "cuda/launch/mass.h"

namespace tierkv::cuda {

// Scales and offsets of the 16 rows' keys by group of channels, where rows have their own: as load_entries() has them, without the
// values'.
template <int T>
TIERKV_DEVICE void load_key_entries(const quant::SideLayout& key, const uint8_t* bytes, uint32_t first,
                                    typename TileShared<T>::Warp& own) {
  if (key.kind != quant::LayoutKind::packed || key.by_channel) return;
  const uint32_t lane = threadIdx.x % 32, row = first + lane % 16;
  const float middle = key.has_levels ? 0.0f : static_cast<float>(code_middle(key.bits));
  __syncwarp();
  for (uint32_t i = lane / 16; i < key.groups; i += 2) {
    const ScaleOffset entry = meta_entry(key, bytes + key.meta_at, i * key.tokens + row, key.groups * key.tokens);
    own.entries[i][lane % 16] = {entry.scale, entry.offset + middle * entry.scale};
  }
  __syncwarp();
}

// Asks for all keys that a warp is going to read of a view, so that it waits for memory once: rows from..end-1, or all codes.
TIERKV_DEVICE void prefetch_keys(const CodecDesc& codec, const ViewDesc& view, uint32_t from, uint32_t end) {
  constexpr uint32_t kLine = 128;
  const bool plain = codec.key.kind == quant::LayoutKind::rows16;
  const uint32_t row = 2 * codec.key.head_dim;
  const uint32_t last = plain ? end * row : codec.key.bytes;
  for (uint32_t i = (plain ? from * row : 0) + threadIdx.x % 32 * kLine; i < last; i += 32 * kLine) prefetch_line(view.keys + i);
}

// The logarithm that a head's scores are measured against, in powers of two; infinity for one that has no share.
TIERKV_DEVICE float share_base(const Launch& launch, const SegmentDesc& segment, uint32_t head) {
  if (head >= launch.group) return INFINITY;
  const float sum = launch.lse[segment.first_row + head];
  return sum == -INFINITY ? INFINITY : sum * kLog2E;
}

TIERKV_DEVICE float share_of(const Launch& launch, float score, float base) {
  if (base == INFINITY) return 0.0f;  // whatever the score is
  if (launch.softcap > 0.0f) score = launch.softcap * kLog2E * tanhf(score / (launch.softcap * kLog2E));
  return power2(score - base);
}

// Eight rows of a group over all views of a segment.
template <int T>
TIERKV_DEVICE void weigh_tiles(const MassLaunch& mass, const SegmentDesc& segment, uint32_t first_head) {
  const Launch& launch = mass.launch;
  const uint32_t at = tile_position(threadIdx.x % 32 / 4), t = threadIdx.x % 4, warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  TileShared<T>& all = tile_shared<T>();
  load_query<T>(launch, segment, first_head, all);
  auto& own = all.warps[warp];
  const float base0 = share_base(launch, segment, first_head + 2 * t), base1 = share_base(launch, segment, first_head + 2 * t + 1);
  float2 base = {0.0f, 0.0f};
  uint32_t chunk = 0, known = UINT32_MAX;  // the codec at hand
  uint32_t ready = UINT32_MAX;             // the view, and the group of tokens, that the query is ready for
  float* to = mass.mass + segment.partial;
  for (uint32_t v = 0; v < segment.views; ++v) {
    const ViewDesc view = launch.views[segment.first_view + v];
    for (uint32_t from = view.begin / launch.chunk_rows * launch.chunk_rows; from < view.end; from += launch.chunk_rows, ++chunk) {
      if (chunk % TileShared<T>::kWarps != warp) continue;
      const CodecDesc& codec = hold_codec<T>(launch, view.codec, known, own);
      const bool grouped = codec.key.kind == quant::LayoutKind::packed && codec.key.by_channel && codec.key.groups != 1;
      const uint32_t end = min(from + launch.chunk_rows, static_cast<uint32_t>(view.end));
      prefetch_keys(codec, view, from, end);
#pragma unroll 1
      for (uint32_t first = from; first < end; first += 16) {
        const TileRows rows{first, sees_row(launch, view, first + at), sees_row(launch, view, first + at + 2)};
        float low = 0.0f, high = 0.0f;
        if (__any_sync(~0u, rows.low || rows.high)) {
          const uint32_t group = grouped ? first / codec.key.group : 0, wanted = v * 16 + group;
          load_key_entries<T>(codec.key, view.keys, first, own);
          if (ready != wanted) {
            base = prepare_query<T>(view.keys, view.first_position, group, warp);
            ready = wanted;
          }
          float s[4];
          score_rows<T>(codec, view, rows, base, own, s);
          if (rows.low) low = share_of(launch, s[0], base0) + share_of(launch, s[1], base1);
          if (rows.high) high = share_of(launch, s[2], base0) + share_of(launch, s[3], base1);
#pragma unroll
          for (uint32_t d = 1; d < 4; d *= 2) low += __shfl_xor_sync(~0u, low, d), high += __shfl_xor_sync(~0u, high, d);
        }
        const auto store = [&](uint32_t row, float x) {
          if (t != 0 || row < view.begin || row >= view.end) return;
          to[row - view.begin] = first_head == 0 ? x : to[row - view.begin] + x;
        };
        store(first + at, low), store(first + at + 2, high);
      }
    }
    to += view.end - view.begin;
  }
}

template <int T>
__global__ void __launch_bounds__(TileShared<T>::kWarps * 32, 1) mass_kernel(const __grid_constant__ MassLaunch mass) {
  const SegmentDesc segment = mass.launch.segments[blockIdx.x];
#pragma unroll 1
  for (uint32_t first = 0; first < mass.launch.group; first += 8) weigh_tiles<T>(mass, segment, first);
}

struct MassKernel {
  void (*kernel)(MassLaunch);
  uint32_t most_dim, threads, shared_bytes;
};
inline const MassKernel kMassKernels[] = {
    {&mass_kernel<8>, 128, TileShared<8>::kWarps * 32, sizeof(TileShared<8>)},
    {&mass_kernel<16>, 256, TileShared<16>::kWarps * 32, sizeof(TileShared<16>)},
};
inline const MassKernel* mass_kernel_for(const Launch& launch) {
  for (const MassKernel& row : kMassKernels) {
    if (launch.head_dim <= row.most_dim) return &row;
  }
  return nullptr;
}

}  // namespace tierkv::cuda
