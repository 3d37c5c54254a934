// encode_twin_testing.h — the encoders' launch done by the processor, a team of one.
#pragma once

#include <vector>

#include "cuda/encode_parts.h"

namespace tierkv::cuda::testing {

// Does a launch. Memory is the processor's.
inline void encode_on_host(const EncodeLaunch& launch) {
  std::vector<double> memory(launch.shared_bytes / sizeof(double) + 1);
  auto* const shared = reinterpret_cast<float*>(memory.data());
  for (uint32_t i = 0; i < launch.num_parts; ++i) {
    if (launch.decodes) encode_part<true>(Team(), launch, launch.parts[i], shared);
    else encode_part<false>(Team(), launch, launch.parts[i], shared);
  }
}

}  // namespace tierkv::cuda::testing
