// attend.cu — the kernels and their launch: a thread block works through its segments, general or fast, and merges what it
// finishes last. One kernel a fast path, so that each has the shared memory and the registers of its own; a row of kPaths.
#include "cuda/kernels.h"
#include "cuda/klt.cuh"
#include "cuda/merge.cuh"
#include "cuda/packed.cuh"
#include "cuda/tiles.cuh"

namespace tierkv::cuda {
namespace {

template <int T>
__global__ void __launch_bounds__(TileShared<T>::kWarps * 32, 1) tiles_kernel(const __grid_constant__ Launch launch) {
  for (uint32_t i = launch.cta_begin[blockIdx.x]; i < launch.cta_begin[blockIdx.x + 1]; ++i) {
    tiles_segment<T>(launch, i);
  }
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
template <int K, int V>
TIERKV_DEVICE void packed_segment(const Launch& launch, const SegmentDesc& segment, WarpCopies& copies, uint8_t* memory) {
  if (launch.codecs[segment.codec].key.by_channel) {
    attend_packed<K, V, true>(launch, segment, copies, memory);
  } else {
    attend_packed<K, V, false>(launch, segment, copies, memory);
  }
}
#endif

template <Path P>
__global__ void __launch_bounds__(kThreads, 1) fast_kernel(const __grid_constant__ Launch launch) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ uint64_t barriers[kThreads / 32][2];
  // What needs a call comes first, in a loop of its own: nothing of the fast paths has to be kept in memory across it.
  const uint32_t begin = launch.cta_begin[blockIdx.x], end = launch.cta_begin[blockIdx.x + 1];
  for (uint32_t i = begin; i < end; ++i) {
    if (launch.segments[i].path == Path::general) tiles_segment<8>(launch, i);
  }
  const uint32_t warp = threadIdx.x / 32;
  WarpCopies copies{shared_address(&barriers[warp][0]), shared_address(&barriers[warp][1]), 0};
  if (threadIdx.x % 32 == 0) barrier_init(copies.keys), barrier_init(copies.values);
  for (uint32_t i = begin; i < end; ++i) {
    const SegmentDesc segment = launch.segments[i];
    if (segment.path == Path::general) continue;
    if constexpr (P == Path::packed22) packed_segment<2, 2>(launch, segment, copies, memory);
    if constexpr (P == Path::packed44) packed_segment<4, 4>(launch, segment, copies, memory);
    if constexpr (P == Path::packed42) packed_segment<4, 2>(launch, segment, copies, memory);
    if constexpr (P == Path::klt) attend_klt(launch, segment, copies, memory);
    finish_segment(launch, segment);
  }
#endif
}

struct KernelRow {
  Path path;
  uint32_t most_group, most_dim;  // rows of a group and channels of a head that it takes
  void (*kernel)(Launch);
  uint32_t threads, shared_bytes;
  bool tensor_paths;
};

constexpr uint32_t with_tiles(uint32_t bytes) {
  return bytes > sizeof(TileShared<8>) ? bytes : static_cast<uint32_t>(sizeof(TileShared<8>));
}

// A new path is a file like packed.cuh, a line in fast_kernel() and a row here.
const KernelRow kPaths[] = {
    {Path::general, 16, 128, tiles_kernel<8>, kThreads, sizeof(TileShared<8>), false},
    {Path::general, 16, 256, tiles_kernel<16>, kThreads / 2, sizeof(TileShared<16>), false},
    {Path::packed22, 8, 128, fast_kernel<Path::packed22>, kThreads, with_tiles(PackedShape<2, 2>::kBytes), true},
    {Path::packed44, 8, 128, fast_kernel<Path::packed44>, kThreads, with_tiles(PackedShape<4, 4>::kBytes), true},
    {Path::packed42, 8, 128, fast_kernel<Path::packed42>, kThreads, with_tiles(PackedShape<4, 2>::kBytes), true},
    {Path::klt, 8, 128, fast_kernel<Path::klt>, kThreads, with_tiles(kKltBytes), true},
};

}  // namespace

int prepare_kernels(bool tensor_paths) {
  for (const KernelRow& row : kPaths) {
    if (row.tensor_paths && !tensor_paths) continue;
    const cudaError_t error =
        cudaFuncSetAttribute(row.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(row.shared_bytes));
    if (error != cudaSuccess) return error;
  }
  return 0;
}

int launch_attend(const Launch& launch, Path fast, cudaStream_t stream) {
  if (launch.ctas == 0) return 0;
  for (const KernelRow& row : kPaths) {
    if (row.path != fast || launch.group > row.most_group || launch.head_dim > row.most_dim) continue;
    row.kernel<<<launch.ctas, row.threads, row.shared_bytes, stream>>>(launch);
    return cudaGetLastError();
  }
  return cudaErrorInvalidValue;
}

}  // namespace tierkv::cuda
