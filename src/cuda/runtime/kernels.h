// kernels.h — the launch, as host code sees it. Kernels take raw pointers and a stream; nothing here allocates or waits.
#pragma once

#include <span>

#include "cuda/launch/desc.h"
#include "cuda/launch/mass.h"
#include "cuda/launch/row_moves.h"

typedef struct CUstream_st* cudaStream_t;
typedef struct CUgraphExec_st* cudaGraphExec_t;
typedef struct CUgraphNode_st* cudaGraphNode_t;

namespace tierkv::cuda {

// Sets the kernels up on the current device, once; the fast ones where it has what they need. 0, or a cudaError_t.
int prepare_kernels(bool tensor_paths);

// All tasks: one launch, or two side by side where some segments are general; `fast` is the one fast path that the others may have.
// What follows in the stream sees both done. 0, or a cudaError_t.
// REQUIRES: prepare_kernels(); failed and arrived are zeros.
int launch_attend(const Launch& launch, const CtaFirsts& firsts, Path fast, cudaStream_t stream);

// The kernels of attention one by one, for a graph (graph.cu): a general one, a staged one and a fast one, side by side.
struct AttendKernel {
  const void* kernel = nullptr;
  uint32_t threads = 0, shared_bytes = 0;
  uint32_t ctas = 0;  // 0: it has nothing to do
};
inline constexpr uint32_t kAttendKernels = 3;
// Of this launch. 0, or a cudaError_t.
int kernels_of(const Launch& launch, Path fast, AttendKernel (&out)[kAttendKernels]);
// Those that launches of a shape may have, of each kind one; null: none.
void some_kernels(uint32_t group, uint32_t head_dim, bool tensor_paths, AttendKernel (&out)[kAttendKernels]);
// One thread block, which must not run, of a stream that is captured, `beside` the kernel before it; and what it does in an
// executable graph of that. The same for row moves, which do nothing if they do run, and for the count at a graph's end. All: 0, or
// a cudaError_t.
int capture_attend(const AttendKernel& kernel, bool beside, cudaStream_t stream);
int set_attend(cudaGraphExec_t exec, cudaGraphNode_t node, const AttendKernel& kernel, const Launch& launch,
               const CtaFirsts& firsts);
inline constexpr uint32_t kMovesANode = 48;
int capture_moves(cudaStream_t stream);
int set_moves(cudaGraphExec_t exec, cudaGraphNode_t node, std::span<const RowMove> moves, uint32_t head_dim);

// What rows received, of calls whose attention came before on the stream: one launch. 0, or a cudaError_t.
// REQUIRES: prepare_mass(); a segment at least.
int prepare_mass();
int launch_mass(const MassLaunch& mass, cudaStream_t stream);

// Rows of one length; one launch, or a few where they are many. 0, or a cudaError_t.
int launch_moves(std::span<const RowMove> moves, uint32_t head_dim, cudaStream_t stream);

}  // namespace tierkv::cuda
