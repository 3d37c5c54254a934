// encode.cu — the encoders' launch: a thread block a part (encode_parts.h). Compiled without fused multiply-adds, so that the bytes
// are those of the processor.
#include <cuda_runtime_api.h>

#include "cuda/encode/encode_parts.h"

namespace tierkv::cuda {
namespace {

template <bool kDecodes>
__global__ void __launch_bounds__(kEncodeThreads, 1) encode_kernel(const __grid_constant__ EncodeLaunch launch) {
  extern __shared__ __align__(16) float memory[];
  encode_part<kDecodes>({threadIdx.x, blockDim.x}, launch, launch.parts[blockIdx.x], memory);
}

}  // namespace

int launch_encode(const EncodeLaunch& launch, cudaStream_t stream) {
  if (launch.num_parts == 0) return cudaSuccess;
  const auto kernel = launch.decodes ? encode_kernel<true> : encode_kernel<false>;
  const cudaError_t room = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostEncodeBytes);
  if (room != cudaSuccess) return room;
  kernel<<<launch.num_parts, kEncodeThreads, launch.shared_bytes, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace tierkv::cuda
