// prompt_kernels.h — launches of attention of many queries, as host code sees them (prompt.h). Nothing here allocates or waits.
#pragma once

#include "cuda/launch/prompt.h"

typedef struct CUstream_st* cudaStream_t;

namespace tierkv::cuda {

// Sets the kernels up on the current device, once. `hopper`: it is of compute capability 9.0. 0, or a cudaError_t, as everywhere
// here.
int prepare_prompt_kernels(bool hopper);

// One step of a round. REQUIRES: prepare_prompt_kernels() with the same `hopper`.
int launch_prompt(const PromptLaunch& launch, PromptStep step, bool hopper, cudaStream_t stream);

// PromptStep::attend with instructions that compute capability 9.0 alone has, for heads of up to 128 channels.
int prepare_prompt_hopper();
int launch_prompt_hopper(const PromptLaunch& launch, cudaStream_t stream);

}  // namespace tierkv::cuda
