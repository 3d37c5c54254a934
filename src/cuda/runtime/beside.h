// beside.h — a launch that may begin while the kernel before it on the stream is still at work.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tierkv::cuda {

// `beside`: it may begin as soon as all thread blocks of the kernel before it have called let_next_begin(). It has to call
// wait_for_previous() before it ends, and before it reads what that one writes. `parameters` as of cudaLaunchKernel().
inline cudaError_t launch_beside(const void* kernel, dim3 ctas, uint32_t threads, size_t shared_bytes, void** parameters,
                                 bool beside, cudaStream_t stream) {
  cudaLaunchAttribute side_by_side{};
  side_by_side.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  side_by_side.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = ctas, config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes, config.stream = stream;
  config.attrs = &side_by_side, config.numAttrs = beside ? 1 : 0;
  return cudaLaunchKernelExC(&config, kernel, parameters);
}

}  // namespace tierkv::cuda
