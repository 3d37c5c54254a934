// attend.cu — the launch of attention.
#include "cuda/decode/attend_kernels.cuh"
#include "cuda/runtime/beside.h"
#include "cuda/runtime/kernels.h"

namespace tierkv::cuda {
namespace {

const void* address_of(const KernelRow& row) {
  return std::visit([](auto* kernel) { return reinterpret_cast<const void*>(kernel); }, row.kernel);
}

cudaError_t launch_kernel(const void* kernel, uint32_t threads, uint32_t shared_bytes, uint32_t ctas, bool beside,
                          const Launch& launch, const CtaFirsts& firsts, cudaStream_t stream) {
  void* parameters[] = {const_cast<Launch*>(&launch), const_cast<CtaFirsts*>(&firsts)};  // the second is the fast ones' alone
  return launch_beside(kernel, ctas, threads, shared_bytes, parameters, beside, stream);
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
    first_error = row ? launch_kernel(address_of(*row), row->threads, row->shared_bytes, ctas, beside, launch, firsts, stream)
                      : cudaErrorInvalidValue;
    beside = true;
  });
  return first_error;
}

namespace {
// Of a graph's kernels of attention.
uint32_t kernel_of(Path path) { return path == Path::general ? 0 : beside_fast(path) ? 1 : 2; }
}  // namespace

int kernels_of(const Launch& launch, Path fast, AttendKernel (&out)[kAttendKernels]) {
  cudaError_t error = cudaSuccess;
  for (AttendKernel& kernel : out) kernel = {};
  for_each_kernel(launch, fast, [&](const KernelRow* row, uint32_t ctas) {
    if (!row) {
      error = cudaErrorInvalidValue;
      return;
    }
    out[kernel_of(row->path)] = {address_of(*row), row->threads, row->shared_bytes, ctas};
  });
  return error;
}

void some_kernels(uint32_t group, uint32_t head_dim, bool tensor_paths, AttendKernel (&out)[kAttendKernels]) {
  for (AttendKernel& kernel : out) kernel = {};
  for (const KernelRow& row : kPaths) {
    if (group > row.most_group || head_dim > row.most_dim || (row.tensor_paths && !tensor_paths)) continue;
    AttendKernel& kernel = out[kernel_of(row.path)];
    if (!kernel.kernel) kernel = {address_of(row), row.threads, row.shared_bytes, 1};
  }
}

int capture_attend(const AttendKernel& kernel, bool beside, cudaStream_t stream) {
  Launch launch;
  CtaFirsts firsts;
  return launch_kernel(kernel.kernel, kernel.threads, kernel.shared_bytes, 1, beside, launch, firsts, stream);
}

int set_attend(cudaGraphExec_t exec, cudaGraphNode_t node, const AttendKernel& kernel, const Launch& launch,
               const CtaFirsts& firsts) {
  void* parameters[] = {const_cast<Launch*>(&launch), const_cast<CtaFirsts*>(&firsts)};
  cudaKernelNodeParams params{};
  params.func = const_cast<void*>(kernel.kernel);
  params.gridDim = dim3(kernel.ctas), params.blockDim = dim3(kernel.threads);
  params.sharedMemBytes = kernel.shared_bytes, params.kernelParams = parameters;
  return cudaGraphExecKernelNodeSetParams(exec, node, &params);
}

}  // namespace tierkv::cuda
