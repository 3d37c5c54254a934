// attend.cu — the launch of attention.
#include "cuda/attend_kernels.cuh"
#include "cuda/kernels.h"

namespace tierkv::cuda {
namespace {

const void* address_of(const KernelRow& row) {
  return std::visit([](auto* kernel) { return reinterpret_cast<const void*>(kernel); }, row.kernel);
}

// Beside what is under way already: it ends after that.
cudaError_t launch_kernel(const KernelRow& row, uint32_t ctas, bool beside, const Launch& launch, const CtaFirsts& firsts,
                          cudaStream_t stream) {
  cudaLaunchAttribute side_by_side{};
  side_by_side.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  side_by_side.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = ctas, config.blockDim = row.threads;
  config.dynamicSmemBytes = row.shared_bytes, config.stream = stream;
  config.attrs = &side_by_side, config.numAttrs = beside ? 1 : 0;
  void* parameters[] = {const_cast<Launch*>(&launch), const_cast<CtaFirsts*>(&firsts)};  // the second is the fast ones' alone
  return cudaLaunchKernelExC(&config, address_of(row), parameters);
}

}  // namespace

int prepare_kernels(bool tensor_paths) {
  for (const KernelRow& row : kPaths) {
    if (row.tensor_paths && !tensor_paths) continue;
    const cudaError_t error =
        cudaFuncSetAttribute(address_of(row), cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(row.shared_bytes));
    if (error != cudaSuccess) return error;
  }
  return 0;
}

int launch_attend(const Launch& launch, const CtaFirsts& firsts, Path fast, cudaStream_t stream) {
  bool beside = false;  // a kernel of this call is under way
  cudaError_t first_error = cudaSuccess;
  for_each_kernel(launch, fast, [&](const KernelRow* row, uint32_t ctas) {
    if (first_error != cudaSuccess) return;
    first_error = row ? launch_kernel(*row, ctas, beside, launch, firsts, stream) : cudaErrorInvalidValue;
    beside = true;
  });
  return first_error;
}

}  // namespace tierkv::cuda
