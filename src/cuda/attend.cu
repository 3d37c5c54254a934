// attend.cu — the launch of attention: which kernel takes which path, a row of kPaths.
#include <utility>

#include "cuda/attend_kernels.cuh"
#include "cuda/kernels.h"

namespace tierkv::cuda {
namespace {

struct KernelRow {
  Path path;
  uint32_t most_group, most_dim;  // rows of a group and channels of a head that it takes
  const void* kernel;
  uint32_t threads, shared_bytes;
  bool tensor_paths;
};

// A new path is a file like packed.cuh, a line in fast_kernel() (attend_kernels.cuh) and a row here.
const KernelRow kPaths[] = {
    {Path::general, 16, 128, reinterpret_cast<const void*>(tiles_kernel<8>), kThreads, sizeof(TileShared<8>), false},
    {Path::general, 16, 256, reinterpret_cast<const void*>(tiles_kernel<16>), kThreads / 2, sizeof(TileShared<16>), false},
    {Path::staged, 16, 64, reinterpret_cast<const void*>(staged_kernel<4>), kStagedThreads, kStagedBytes<4>, false},
    {Path::staged, 16, 128, reinterpret_cast<const void*>(staged_kernel<8>), kStagedThreads, kStagedBytes<8>, false},
    {Path::staged, 16, 256, reinterpret_cast<const void*>(staged_kernel<16>), kStagedThreads, kStagedBytes<16>, false},
    {Path::whole22, 4, 128, reinterpret_cast<const void*>(fast_kernel<Path::whole22>), kThreads, WholeShape::kBytes, true},
    {Path::packed22, 8, 128, reinterpret_cast<const void*>(fast_kernel<Path::packed22>), kThreads, PackedShape<2, 2>::kBytes, true},
    {Path::packed44, 8, 128, reinterpret_cast<const void*>(fast_kernel<Path::packed44>), kThreads, PackedShape<4, 4>::kBytes, true},
    {Path::packed42, 8, 128, reinterpret_cast<const void*>(fast_kernel<Path::packed42>), kThreads, PackedShape<4, 2>::kBytes, true},
    {Path::klt, 8, 128, reinterpret_cast<const void*>(fast_kernel<Path::klt>), kThreads, kKltBytes, true},
    {Path::klt_better, 8, 128, reinterpret_cast<const void*>(fast_kernel<Path::klt_better>), kThreads, kKltBytes, true},
};

const KernelRow* row_for(const Launch& launch, Path path) {
  for (const KernelRow& row : kPaths) {
    if (row.path == path && launch.group <= row.most_group && launch.head_dim <= row.most_dim) return &row;
  }
  return nullptr;
}

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

int launch_attend(const Launch& launch, const CtaFirsts& firsts, Path fast, cudaStream_t stream) {
  const std::pair<Path, uint32_t> parts[] = {{Path::general, launch.general_ctas},
                                             {Path::staged, launch.staged_ctas},
                                             {fast, launch.ctas - launch.general_ctas - launch.staged_ctas}};
  bool beside = false;  // a kernel of this call is under way
  for (const auto& [path, ctas] : parts) {
    if (ctas == 0) continue;
    const KernelRow* const row = row_for(launch, path);
    if (!row) return cudaErrorInvalidValue;
    cudaLaunchAttribute side_by_side{};
    side_by_side.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    side_by_side.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = ctas, config.blockDim = row->threads;
    config.dynamicSmemBytes = row->shared_bytes, config.stream = stream;
    config.attrs = &side_by_side, config.numAttrs = beside ? 1 : 0;
    void* parameters[] = {const_cast<Launch*>(&launch), const_cast<CtaFirsts*>(&firsts)};  // the second is the fast ones' alone
    if (const cudaError_t error = cudaLaunchKernelExC(&config, row->kernel, parameters); error != cudaSuccess) return error;
    beside = true;
  }
  return 0;
}

}  // namespace tierkv::cuda
