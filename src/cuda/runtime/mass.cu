// mass.cu — the launch that says what rows received.
#include "cuda/mass/mass_kernel.cuh"
#include "cuda/runtime/kernels.h"

namespace tierkv::cuda {

int prepare_mass() {
  for (const MassKernel& row : kMassKernels) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(row.kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(row.shared_bytes));
    if (error != cudaSuccess) return error;
  }
  return 0;
}

int launch_mass(const MassLaunch& mass, cudaStream_t stream) {
  const MassKernel* const row = mass_kernel_for(mass.launch);
  if (!row) return cudaErrorInvalidValue;
  cudaLaunchConfig_t config{};
  config.gridDim = mass.launch.ctas, config.blockDim = row->threads;
  config.dynamicSmemBytes = row->shared_bytes, config.stream = stream;
  void* parameters[] = {const_cast<MassLaunch*>(&mass)};
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(row->kernel), parameters);
}

}  // namespace tierkv::cuda
