// prompt.cu — launches of attention of many queries.
#include <initializer_list>

#include "cuda/prompt/prompt_attend.cuh"
#include "cuda/prompt/prompt_unpack.cuh"
#include "cuda/prompt/prompt_unpack_tile.cuh"
#include "cuda/runtime/prompt_kernels.h"

namespace tierkv::cuda {
namespace {

constexpr uint32_t kTileBlocks = 264;  // of a side: some views each, and enough for any device

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

template <int D>
void launch_step(const PromptLaunch& launch, PromptStep step, cudaStream_t stream) {
  if (step == PromptStep::unpack) {
    if (launch.tile_views != 0) {
      const uint32_t blocks = launch.tile_views < kTileBlocks ? launch.tile_views : kTileBlocks;
      unpack_tile_kernel<<<dim3(blocks, 2), kTileThreads, sizeof(UnpackTileShared), stream>>>(launch);
    }
    if (launch.view_count != launch.tile_views) {
      const dim3 blocks(launch.view_count - launch.tile_views, 2);
      unpack_kernel<D><<<blocks, kUnpackThreads, sizeof(UnpackShared<D>), stream>>>(launch);
    }
  } else if (launch.softcap > 0.0f) {
    prompt_kernel<D, true><<<launch.item_count, kPromptThreads, sizeof(PromptShared<D>), stream>>>(launch);
  } else {
    prompt_kernel<D, false><<<launch.item_count, kPromptThreads, sizeof(PromptShared<D>), stream>>>(launch);
  }
}

}  // namespace

int prepare_prompt_kernels(bool hopper) {
  for (const int error : {prepare<64>(), prepare<128>(), prepare<256>(), allow_shared(unpack_tile_kernel, sizeof(UnpackTileShared)),
                          hopper ? prepare_prompt_hopper() : 0}) {
    if (error != 0) return error;
  }
  return 0;
}

int launch_prompt(const PromptLaunch& launch, PromptStep step, bool hopper, cudaStream_t stream) {
  const uint32_t dim = prompt_dim(launch.head_dim);
  if (step == PromptStep::merge) {
    if (launch.tile_count != 0) prompt_merge_kernel<<<dim3(launch.tile_count, 16), 256, 0, stream>>>(launch);
  } else if (step == PromptStep::attend && hopper && dim <= 128) {
    return launch_prompt_hopper(launch, stream);
  } else if (dim == 64) {
    launch_step<64>(launch, step, stream);
  } else if (dim == 128) {
    launch_step<128>(launch, step, stream);
  } else {
    launch_step<256>(launch, step, stream);
  }
  return cudaGetLastError();
}

}  // namespace tierkv::cuda
