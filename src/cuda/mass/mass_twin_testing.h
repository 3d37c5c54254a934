// mass_twin_testing.h — the scalar twin of the kernel that says what rows received (mass.h).
#pragma once

#include <cmath>

#include "cuda/launch/mass.h"
#include "cuda/plan/twin_testing.h"

namespace tierkv::cuda::testing {

inline void weigh_on_host(const MassLaunch& mass) {
  const Launch& launch = mass.launch;
  const Twin twin(launch, 0);
  for (uint32_t i = 0; i < launch.ctas; ++i) {
    const SegmentDesc& segment = launch.segments[i];
    float* to = mass.mass + segment.partial;
    for (uint32_t v = 0; v < segment.views; ++v) {
      const ViewDesc& view = launch.views[segment.first_view + v];
      for (uint32_t t = view.begin; t < view.end; ++t) {
        double sum = 0.0;
        const bool seen = view.mask == kNoMask || (launch.masks[view.mask * kMaskWords + t / 32] >> (t % 32) & 1u) != 0;
        const std::vector<float> key = seen ? twin.plain_key(launch.codecs[view.codec], view, t) : std::vector<float>();
        for (uint32_t row = segment.first_row; seen && row < segment.first_row + launch.group; ++row) {
          double score = 0.0;
          for (uint32_t c = 0; c < launch.head_dim; ++c)
            score += double{key[c]} * launch.queries[size_t{row} * launch.head_dim + c];
          score *= launch.scale;
          if (launch.softcap > 0.0f) score = launch.softcap * std::tanh(score / launch.softcap);
          if (launch.lse[row] > -INFINITY) sum += std::exp(score - launch.lse[row]);
        }
        *to++ = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace tierkv::cuda::testing
