// kernels.h — the launch, as host code sees it. Kernels take raw pointers and a stream; nothing here allocates or waits.
#pragma once

#include <span>

#include "cuda/desc.h"
#include "cuda/mass.h"
#include "cuda/row_moves.h"

typedef struct CUstream_st* cudaStream_t;

namespace tierkv::cuda {

// Sets the kernels up on the current device, once; the fast ones where it has what they need. 0, or a cudaError_t.
int prepare_kernels(bool tensor_paths);

// All tasks: one launch, or two side by side where some segments are general; `fast` is the one fast path that the others may have.
// What follows in the stream sees both done. 0, or a cudaError_t.
// REQUIRES: prepare_kernels(); failed and arrived are zeros.
int launch_attend(const Launch& launch, const CtaFirsts& firsts, Path fast, cudaStream_t stream);

// What rows received, of calls whose attention came before on the stream: one launch. 0, or a cudaError_t.
// REQUIRES: prepare_mass(); a segment at least.
int prepare_mass();
int launch_mass(const MassLaunch& mass, cudaStream_t stream);

// Rows of one length; one launch, or a few where they are many. 0, or a cudaError_t.
int launch_moves(std::span<const RowMove> moves, uint32_t head_dim, cudaStream_t stream);

}  // namespace tierkv::cuda
