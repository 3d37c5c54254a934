// attend_kernels.cuh — the kernels of attention, one a path, so that each has the shared memory and the registers of its own: a
// thread block works through its segments, all of one path, and merges what it finishes last.
#pragma once

#include <algorithm>
#include <utility>
#include <variant>

#include "cuda/decode/klt_whole.cuh"
#include "cuda/decode/merge.cuh"
#include "cuda/decode/packed.cuh"
#include "cuda/decode/plain.cuh"
#include "cuda/decode/staged.cuh"
#include "cuda/decode/tiles.cuh"
#include "cuda/decode/warm.cuh"
#include "cuda/decode/whole.cuh"

namespace tierkv::cuda {

template <int T>
__global__ void __launch_bounds__(TileShared<T>::kWarps * 32, 1) tiles_kernel(const __grid_constant__ Launch launch) {
  let_next_begin();
  for (uint32_t i = launch.cta_begin[blockIdx.x]; i < launch.cta_begin[blockIdx.x + 1]; ++i) tiles_segment<T>(launch, i);
}

template <int T>
inline constexpr bool kHasBeside = beside_takes(T * 16);
template <int T>
inline constexpr uint32_t kStagedBytes = kHasBeside<T> && sizeof(StagedShared<T>) < WarmShape<T * 16>::kBytes
                                             ? WarmShape<T * 16>::kBytes
                                             : sizeof(StagedShared<T>);
static_assert(kBesideThreads == kStagedThreads);
// Shared memory of a kernel of warm, plain and staged rows.
template <int T, bool kOnlyBeside>
inline constexpr uint32_t kStagedHas = kStagedBytes<T>;
template <int T>
inline constexpr uint32_t kStagedHas<T, true> = WarmShape<T * 16>::kBytes;
// What merges states has room in every kernel's shared memory. Fast ones have more than that in common.
inline constexpr uint32_t kFastRoom = 96 * 1024;
static_assert(merge_bytes(128) <= sizeof(TileShared<8>) && merge_bytes(256) <= sizeof(TileShared<16>));
static_assert(merge_bytes(64) <= kStagedHas<4, true> && merge_bytes(64) <= kStagedHas<4, false>);
static_assert(merge_bytes(128) <= kStagedHas<8, true> && merge_bytes(128) <= kStagedHas<8, false>);
static_assert(merge_bytes(256) <= kStagedHas<16, false> && merge_bytes(128) <= kFastRoom);

// kOnlyBeside: no segment is staged.
template <int T, bool kOnlyBeside>
TIERKV_DEVICE void staged_segment(const Launch& launch, const SegmentDesc segment) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  if constexpr (kHasBeside<T>) {
    if (segment.path == Path::warm) attend_warm<T * 16>(launch, segment, dynamic_shared());
  }
#endif
  if (segment.path != Path::warm) {
#pragma unroll 1
    for (uint32_t first = 0; first < launch.group; first += 8) {
      if constexpr (kHasBeside<T>) {
        if (kOnlyBeside || segment.path == Path::plain) {
          attend_plain<T * 16>(launch, segment, first, dynamic_shared());
          continue;
        }
      }
      if constexpr (!kOnlyBeside) attend_staged<T>(launch, segment, first);
    }
  }
  finish_segment(launch, segment, dynamic_shared(), kStagedHas<T, kOnlyBeside>);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  fence_writes();  // the next one's copies may come to where this one wrote
#endif
}

// Thread blocks take segment after segment. Beside the fast kernel only those run that have room where it leaves a multiprocessor
// free, and do as much as they can until others have: segments are given out. In front of it all have room, and a thread block
// begins with the segment of its own number: to ask for one takes a way to far memory and back.
template <int T, bool kOnlyBeside = false>
__global__ void __launch_bounds__(kStagedThreads, kOnlyBeside ? kBesideRoom
                                                  : T > 8     ? kStagedWideRoom
                                                              : kStagedRoom) staged_kernel(const __grid_constant__ Launch launch) {
  let_next_begin();
  __shared__ uint32_t given;
  const uint32_t ctas = min(launch.staged_ctas, kMostStaged), own = launch.staged_last ? 0 : ctas;
  if (threadIdx.x == 0) given = launch.staged_last ? atomicAdd(launch.given, 1u) : blockIdx.x;
  __syncthreads();
  for (uint32_t i = given; i < launch.staged_ctas; i = given) {
    uint32_t next = 0;
    if (threadIdx.x == 0) next = own + atomicAdd(launch.given, 1u);  // asked for now, there when it is wanted
    staged_segment<T, kOnlyBeside>(launch, launch.segments[launch.first_staged + i]);
    if (threadIdx.x == 0) given = next;
    __syncthreads();
  }
  if (threadIdx.x == 0 && atomicAdd(launch.given + 1, 1u) + 1 == ctas) {
    launch.given[0] = launch.given[1] = 0;
  }
  if (blockIdx.x == 0) wait_for_previous();
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
template <int K, int V, uint32_t D>
TIERKV_DEVICE void packed_segment(const Launch& launch, const FastPiece& piece, const Barriers& barriers, uint32_t& phase,
                                  uint8_t* memory) {
  if (piece.codec.by_channel) {
    attend_packed<K, V, D, true>(launch, piece, barriers, phase, memory);
  } else {
    attend_packed<K, V, D, false>(launch, piece, barriers, phase, memory);
  }
}

TIERKV_DEVICE void whole_segment(const Launch& launch, const FastPiece& piece, WarpCopies& copies, uint8_t* memory) {
  if (piece.codec.by_channel) attend_whole<true>(launch, piece, copies, memory);
  else attend_whole<false>(launch, piece, copies, memory);
}

template <Path P>
inline constexpr bool kIsKlt = is_klt(P);

// Nothing of a launch's lists is near when it begins. What a thread block will ask for first is on its way before all are ready.
// klt gains nothing by it: its tables take longer.
TIERKV_DEVICE void ask_ahead(const Launch& launch, const CtaFirst& first) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, line = warp * 32;  // of floats
  if (lane == 0) prefetch_line(launch.views + first.first_view + min(2 * warp, first.views - 1));
  if (lane == 1 && line < launch.group * launch.head_dim) {
    prefetch_line(launch.queries + static_cast<size_t>(first.first_row) * launch.head_dim + line);
  }
}

// The first segment of a thread block is in the parameters, and its codec, unless there are too many of them.
template <Path P>
TIERKV_DEVICE FastPiece piece_of(const Launch& launch, const CtaFirsts& firsts, const CtaFirst& first, uint32_t i) {
  if (i == 0 && first.codec != kNoFirstCodec) {
    const FastCodec& codec = firsts.codecs[first.codec];
    return {first_segment(first, codec.index, P), codec};
  }
  const SegmentDesc segment = launch.segments[first.at + i];
  return {segment, fast_codec(launch.codecs[segment.codec])};
}
#endif

template <Path P, uint32_t D>
__global__ void __launch_bounds__(kThreads, 1)
    fast_kernel(const __grid_constant__ Launch launch, const __grid_constant__ CtaFirsts firsts) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  let_next_begin();
  uint8_t* const memory = dynamic_shared();
  __shared__ Barriers barriers;
  __shared__ uint64_t tables;
  WarpCopies copies(barriers, threadIdx.x / 32);
  if (threadIdx.x % 32 == 0) {
    barrier_init(copies.keys), barrier_init(copies.values);
    if (threadIdx.x == 0) barrier_init(shared_address(&tables));  // klt's
    fence_copies();
  }
  __syncwarp();
  const CtaFirst& first = firsts.of[blockIdx.x];
  if constexpr (!kIsKlt<P>) ask_ahead(launch, first);
  __shared__ FastPiece piece;
  for (uint32_t i = 0; i < first.segments; ++i) {
    if (threadIdx.x == 0) piece = piece_of<P>(launch, firsts, first, i);
    if (i != 0) fence_copies();
    __syncthreads();
    if constexpr (P == Path::packed22) packed_segment<2, 2, D>(launch, piece, barriers, copies.phase, memory);
    if constexpr (P == Path::whole22) whole_segment(launch, piece, copies, memory);
    if constexpr (P == Path::packed44) packed_segment<4, 4, D>(launch, piece, barriers, copies.phase, memory);
    if constexpr (P == Path::packed42) packed_segment<4, 2, D>(launch, piece, barriers, copies.phase, memory);
    const TableCopy once{shared_address(&tables), i % 2};
    if constexpr (P == Path::klt) attend_klt<D, false>(launch, SegmentDesc(piece.segment), piece.codec, once, copies, memory);
    if constexpr (P == Path::klt_whole) attend_klt_whole<D>(launch, SegmentDesc(piece.segment), piece, once, copies, memory);
    if constexpr (P == Path::klt_better) {
      attend_klt<D, true>(launch, SegmentDesc(launch.segments[first.at + i]), piece.codec, once, copies, memory);
    }
    finish_segment(launch, piece.segment, memory, kFastRoom);
  }
  if (blockIdx.x == 0) wait_for_previous();
#endif
}

// Which kernel takes which path.
struct KernelRow {
  Path path;
  uint32_t most_group, most_dim;                                       // rows of a group and channels of a head that it takes
  std::variant<void (*)(Launch), void (*)(Launch, CtaFirsts)> kernel;  // the second are the fast ones
  uint32_t threads, shared_bytes;
  bool tensor_paths;
};

// A new path is a file like packed.cuh, a line in fast_kernel() and a row here.
inline const KernelRow kPaths[] = {
    {Path::general, 16, 128, &tiles_kernel<8>, kThreads, sizeof(TileShared<8>), false},
    {Path::general, 16, 256, &tiles_kernel<16>, kThreads / 2, sizeof(TileShared<16>), false},
    {Path::warm, 16, 64, &staged_kernel<4, true>, kStagedThreads, WarmShape<64>::kBytes, false},
    {Path::warm, 16, 128, &staged_kernel<8, true>, kStagedThreads, WarmShape<128>::kBytes, false},
    {Path::staged, 16, 64, &staged_kernel<4>, kStagedThreads, kStagedBytes<4>, false},
    {Path::staged, 16, 128, &staged_kernel<8>, kStagedThreads, kStagedBytes<8>, false},
    {Path::staged, 16, 256, &staged_kernel<16>, kStagedThreads, kStagedBytes<16>, false},
    {Path::whole22, 4, 128, &fast_kernel<Path::whole22, 128>, kThreads, WholeShape::kBytes, true},
    {Path::packed22, 8, 64, &fast_kernel<Path::packed22, 64>, kThreads, PackedShape<2, 2, 64>::kBytes, true},
    {Path::packed22, 8, 128, &fast_kernel<Path::packed22, 128>, kThreads, PackedShape<2, 2, 128>::kBytes, true},
    {Path::packed44, 8, 64, &fast_kernel<Path::packed44, 64>, kThreads, PackedShape<4, 4, 64>::kBytes, true},
    {Path::packed44, 8, 128, &fast_kernel<Path::packed44, 128>, kThreads, PackedShape<4, 4, 128>::kBytes, true},
    {Path::packed42, 8, 64, &fast_kernel<Path::packed42, 64>, kThreads, PackedShape<4, 2, 64>::kBytes, true},
    {Path::packed42, 8, 128, &fast_kernel<Path::packed42, 128>, kThreads, PackedShape<4, 2, 128>::kBytes, true},
    {Path::klt, 8, 64, &fast_kernel<Path::klt, 64>, kThreads, kKltBytes, true},
    {Path::klt, 8, 128, &fast_kernel<Path::klt, 128>, kThreads, kKltBytes, true},
    {Path::klt_whole, 4, 64, &fast_kernel<Path::klt_whole, 64>, kThreads, kKltBytes, true},
    {Path::klt_whole, 4, 128, &fast_kernel<Path::klt_whole, 128>, kThreads, kKltBytes, true},
    {Path::klt_better, 8, 64, &fast_kernel<Path::klt_better, 64>, kThreads, kKltBytes, true},
    {Path::klt_better, 8, 128, &fast_kernel<Path::klt_better, 128>, kThreads, kKltBytes, true},
};

inline const KernelRow* row_for(const Launch& launch, Path path) {
  for (const KernelRow& row : kPaths) {
    if (row.path == path && launch.group <= row.most_group && launch.head_dim <= row.most_dim) return &row;
  }
  return nullptr;
}

// use(row, thread blocks) for each kernel that a launch needs, in the order in which they begin; the row is null where a path has
// none. In front of fast ones, which take whole multiprocessors, staged ones hold these up.
template <class Use>
void for_each_kernel(const Launch& launch, Path fast, const Use& use) {
  std::pair<Path, uint32_t> parts[] = {{Path::general, launch.general_ctas},
                                       {launch.only_beside ? Path::warm : Path::staged, std::min(launch.staged_ctas, kMostStaged)},
                                       {fast, launch.ctas - launch.general_ctas - launch.staged_ctas}};
  if (launch.staged_last) std::swap(parts[1], parts[2]);
  for (const auto& [path, ctas] : parts) {
    if (ctas != 0) use(row_for(launch, path), ctas);
  }
}

}  // namespace tierkv::cuda
