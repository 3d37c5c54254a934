// prompt.cu — launches of attention of many queries.
#include <initializer_list>

#include "cuda/prompt/prompt_attend.cuh"
#include "cuda/prompt/prompt_unpack.cuh"
#include "cuda/prompt/prompt_unpack_tile.cuh"
#include "cuda/runtime/beside.h"
#include "cuda/runtime/prompt_kernels.h"

namespace tierkv::cuda {
namespace {

constexpr uint32_t kTileBlocks = 132;  // for each that a multiprocessor has room for: some views each, and enough for any device

template <class Kernel>
int allow_shared(Kernel kernel, size_t bytes) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

template <int D>
int prepare() {
  for (const int error :
       {allow_shared(unpack_kernel<D>, sizeof(UnpackShared<D>)), allow_shared(prompt_kernel<D, false>, sizeof(PromptShared<D>)),
        allow_shared(prompt_kernel<D, true>, sizeof(PromptShared<D>))}) {
    if (error != 0) return error;
  }
  return 0;
}

template <bool kKeys>
cudaError_t launch_tiles(PromptLaunch launch, bool beside, cudaStream_t stream) {
  const uint32_t most = kTileBlocks * kUnpackTileRoom<kKeys>, blocks = launch.tile_views < most ? launch.tile_views : most;
  void* parameters[] = {&launch};
  return launch_beside(reinterpret_cast<const void*>(unpack_tile_kernel<kKeys>), blocks, kTileThreads, kUnpackTileBytes<kKeys>,
                       parameters, beside, stream);
}

// Side by side: single views take long for how little of a device they need.
template <int D>
cudaError_t unpack(const PromptLaunch& launch, bool beside, cudaStream_t stream) {
  const uint32_t single = launch.view_count - launch.tile_views;
  if (single != 0) unpack_kernel<D><<<dim3(single, 2), kUnpackThreads, sizeof(UnpackShared<D>), stream>>>(launch);
  if (launch.tile_views == 0) return cudaGetLastError();
  if (const cudaError_t error = launch_tiles<true>(launch, beside && single != 0, stream); error != cudaSuccess) return error;
  return launch_tiles<false>(launch, beside, stream);
}

template <int D>
cudaError_t attend(const PromptLaunch& launch, cudaStream_t stream) {
  if (launch.softcap > 0.0f) {
    prompt_kernel<D, true><<<launch.item_count, kPromptThreads, sizeof(PromptShared<D>), stream>>>(launch);
  } else {
    prompt_kernel<D, false><<<launch.item_count, kPromptThreads, sizeof(PromptShared<D>), stream>>>(launch);
  }
  return cudaGetLastError();
}

template <int D>
cudaError_t merge(const PromptLaunch& launch, cudaStream_t stream) {
  if (launch.tile_count != 0) prompt_merge_kernel<D><<<dim3(launch.tile_count, 16), 256, 0, stream>>>(launch);
  return cudaGetLastError();
}

template <int D>
cudaError_t launch_step(const PromptLaunch& launch, PromptStep step, bool beside, cudaStream_t stream) {
  switch (step) {
    case PromptStep::unpack: return unpack<D>(launch, beside, stream);
    case PromptStep::attend: return attend<D>(launch, stream);
    default: return merge<D>(launch, stream);
  }
}

}  // namespace

int prepare_prompt_kernels(bool hopper) {
  for (const int error :
       {prepare<64>(), prepare<128>(), prepare<256>(), allow_shared(unpack_tile_kernel<true>, kUnpackTileBytes<true>),
        allow_shared(unpack_tile_kernel<false>, kUnpackTileBytes<false>), hopper ? prepare_prompt_hopper() : 0}) {
    if (error != 0) return error;
  }
  return 0;
}

int launch_prompt(const PromptLaunch& launch, PromptStep step, bool hopper, cudaStream_t stream) {
  const uint32_t dim = prompt_dim(launch.head_dim);
  if (step == PromptStep::attend && hopper && dim <= 128) return launch_prompt_hopper(launch, stream);
  switch (dim) {
    case 64: return launch_step<64>(launch, step, hopper, stream);
    case 128: return launch_step<128>(launch, step, hopper, stream);
    default: return launch_step<256>(launch, step, hopper, stream);
  }
}

}  // namespace tierkv::cuda
