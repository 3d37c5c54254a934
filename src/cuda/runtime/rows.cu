// rows.cu — the kernel of row_moves.h.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/runtime/kernels.h"

namespace tierkv::cuda {
namespace {

constexpr uint32_t kMostMoves = kMovesANode;  // of a launch: its parameters are below 4 KB
constexpr uint32_t kMoveThreads = 128, kMostCtas = 512;

struct Moves {
  RowMove of[kMostMoves];
};

__device__ float read_element(const void* from, DType type, int64_t at) {
  if (type == DType::f32) return static_cast<const float*>(from)[at];
  if (type == DType::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(from)[at]);
  return __half2float(static_cast<const __half*>(from)[at]);
}

__device__ void write_element(void* to, DType type, int64_t at, float x) {
  if (type == DType::f32) static_cast<float*>(to)[at] = x;
  else if (type == DType::bf16) static_cast<__nv_bfloat16*>(to)[at] = __float2bfloat16_rn(x);
  else static_cast<__half*>(to)[at] = __float2half_rn(x);
}

// A warp a row. Rows of one type go as they are, whatever is in them.
__global__ void __launch_bounds__(kMoveThreads) move_kernel(const __grid_constant__ Moves moves, uint32_t head_dim) {
  const RowMove& move = moves.of[blockIdx.y];
  const uint32_t rows = move.tokens * move.heads, lane = threadIdx.x % 32;
  for (uint32_t row = (blockIdx.x * kMoveThreads + threadIdx.x) / 32; row < rows; row += gridDim.x * (kMoveThreads / 32)) {
    const uint32_t token = row / move.heads, head = row % move.heads;
    const int64_t from = token * move.from_token + head * move.from_head, to = token * move.to_token + head * move.to_head;
    if (move.from_type == move.to_type) {
      if (move.from_type == DType::f32) {
        for (uint32_t c = lane; c < head_dim; c += 32) {
          static_cast<uint32_t*>(move.to)[to + c] = static_cast<const uint32_t*>(move.from)[from + c];
        }
      } else {
        for (uint32_t c = lane; c < head_dim; c += 32) {
          static_cast<uint16_t*>(move.to)[to + c] = static_cast<const uint16_t*>(move.from)[from + c];
        }
      }
      continue;
    }
    for (uint32_t c = lane; c < head_dim; c += 32) {
      write_element(move.to, move.to_type, to + c, read_element(move.from, move.from_type, from + c));
    }
  }
}

// One launch. Its thread blocks; none: there is nothing to move.
dim3 batch_of(std::span<const RowMove> some, Moves& batch) {
  uint32_t rows = 0;
  for (size_t i = 0; i < some.size(); ++i) {
    batch.of[i] = some[i];
    rows = std::max(rows, some[i].tokens * some[i].heads);
  }
  return {std::min((rows * 32 + kMoveThreads - 1) / kMoveThreads, kMostCtas), static_cast<uint32_t>(some.size()), 1};
}

}  // namespace

int launch_moves(std::span<const RowMove> moves, uint32_t head_dim, cudaStream_t stream) {
  for (size_t first = 0; first < moves.size(); first += kMostMoves) {
    Moves batch;
    const dim3 grid = batch_of(moves.subspan(first, std::min<size_t>(kMostMoves, moves.size() - first)), batch);
    if (grid.x == 0) continue;
    move_kernel<<<grid, kMoveThreads, 0, stream>>>(batch, head_dim);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  return 0;
}

int capture_moves(cudaStream_t stream) {
  move_kernel<<<1, kMoveThreads, 0, stream>>>(Moves(), 0);
  return cudaGetLastError();
}

int set_moves(cudaGraphExec_t exec, cudaGraphNode_t node, std::span<const RowMove> moves, uint32_t head_dim) {
  Moves batch;
  void* parameters[] = {&batch, &head_dim};
  cudaKernelNodeParams params{};
  params.func = reinterpret_cast<void*>(&move_kernel);
  params.gridDim = batch_of(moves, batch), params.blockDim = dim3(kMoveThreads);
  params.kernelParams = parameters;
  return cudaGraphExecKernelNodeSetParams(exec, node, &params);
}

}  // namespace tierkv::cuda
