// topics_testing.h — rows for tests that choose between blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace tierkv::testing {

// `tokens` rows of `width` numbers. Every 500 tokens are about something else, so that blocks differ in what queries see in them.
inline std::vector<float> rows_by_topic(uint32_t tokens, size_t width) {
  std::mt19937 rng(9);
  std::normal_distribution<float> normal;
  std::vector<float> out(tokens * width), mean(width);
  for (uint32_t t = 0; t < tokens; ++t) {
    for (size_t c = 0; c < width; ++c) {
      if (t % 500 == 0) mean[c] = normal(rng);
      out[t * width + c] = mean[c] + 0.05f * normal(rng);
    }
  }
  return out;
}

}  // namespace tierkv::testing
