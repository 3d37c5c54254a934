// prompt_hopper.cu — the launch of prompt_hopper.cuh. Compiled for sm_90a alone (cmake/TierkvCuda.cmake).
#include "cuda/prompt/prompt_hopper.cuh"

#include "cuda/runtime/beside.h"
#include "cuda/runtime/prompt_kernels.h"

namespace tierkv::cuda {
namespace {

using hopper::hopper_kernel, hopper::kHopperBytes, hopper::kThreadsAll;

template <int D, bool kCapped>
int prepare() {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(hopper_kernel<D, kCapped>), cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(kHopperBytes<D>));
}

template <int D>
int launch_items(PromptLaunch launch, cudaStream_t stream) {
  const auto kernel = launch.softcap > 0.0f ? hopper_kernel<D, true> : hopper_kernel<D, false>;
  void* parameters[] = {&launch};
  return launch_beside(reinterpret_cast<const void*>(kernel), launch.item_count, kThreadsAll, kHopperBytes<D>, parameters, true,
                       stream);
}

}  // namespace

int prepare_prompt_hopper() {
  for (const int error : {prepare<64, false>(), prepare<64, true>(), prepare<128, false>(), prepare<128, true>()}) {
    if (error != 0) return error;
  }
  return 0;
}

int launch_prompt_hopper(const PromptLaunch& launch, cudaStream_t stream) {
  return prompt_dim(launch.head_dim) == 64 ? launch_items<64>(launch, stream) : launch_items<128>(launch, stream);
}

}  // namespace tierkv::cuda
