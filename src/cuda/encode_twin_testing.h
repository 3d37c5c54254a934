// encode_twin_testing.h — the encoders' launch done by the processor, a team of one.
#pragma once

#include <vector>

#include "cuda/encode_parts.h"

namespace tierkv::cuda::testing {

// Does a launch. Memory is the processor's.
inline void encode_on_host(const EncodeLaunch& launch) {
  std::vector<double> memory(launch.shared_bytes / sizeof(double) + 1);
  for (uint32_t i = 0; i < launch.num_parts; ++i)
    encode_part(Team(), launch, launch.parts[i], reinterpret_cast<float*>(memory.data()));
}

}  // namespace tierkv::cuda::testing
