// encode.cu — the encoders' launch: a thread block a part (encode_parts.h). Compiled without fused multiply-adds, so that the bytes
// are those of the processor.
#include <cuda_runtime_api.h>

#include "cuda/encode_parts.h"

namespace tierkv::cuda {
namespace {

__global__ void __launch_bounds__(kEncodeThreads, 1) encode_kernel(const __grid_constant__ EncodeLaunch launch) {
  extern __shared__ __align__(16) float memory[];
  encode_part({threadIdx.x, blockDim.x}, launch, launch.parts[blockIdx.x], memory);
}

}  // namespace

int launch_encode(const EncodeLaunch& launch, cudaStream_t stream) {
  if (launch.num_parts == 0) return cudaSuccess;
  const cudaError_t room = cudaFuncSetAttribute(encode_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostEncodeBytes);
  if (room != cudaSuccess) return room;
  encode_kernel<<<launch.num_parts, kEncodeThreads, launch.shared_bytes, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace tierkv::cuda
