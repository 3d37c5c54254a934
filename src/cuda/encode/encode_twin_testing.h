// encode_twin_testing.h — the encoders' launch done by the processor: a team of one, or with TIERKV_SIMT all threads of a device.
#pragma once

#include <vector>

#ifdef TIERKV_SIMT
#include "cuda/simt/simt_language.h"
#endif

#include "cuda/encode/encode_parts.h"

namespace tierkv::cuda::testing {

inline void encode_part_on_host(const Team& team, const EncodeLaunch& launch, uint32_t part, void* shared) {
  auto* const memory = static_cast<float*>(shared);
  if (launch.decodes) encode_part<true>(team, launch, launch.parts[part], memory);
  else encode_part<false>(team, launch, launch.parts[part], memory);
}

// Does a launch. Memory is the processor's.
inline void encode_on_host(const EncodeLaunch& launch) {
#ifdef TIERKV_SIMT
  static simt::Machine machine;
  for (const auto order : {simt::Machine::Order::first_to_last, simt::Machine::Order::last_to_first}) {
    machine.run(launch.num_parts, kEncodeThreads, launch.shared_bytes, order, [&] {
      encode_part_on_host({threadIdx.x, blockDim.x}, launch, blockIdx.x, simt::Machine::now().shared());
    });
  }
#else
  std::vector<double> memory(launch.shared_bytes / sizeof(double) + 1);
  for (uint32_t i = 0; i < launch.num_parts; ++i) encode_part_on_host(Team(), launch, i, memory.data());
#endif
}

}  // namespace tierkv::cuda::testing
