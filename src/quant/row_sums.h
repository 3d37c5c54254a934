// row_sums.h — what a softmax asks of a row of scores, and what codecs that weigh decoded rows share: on the kernels where there
// are some.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/f16.h"
#include "quant/isa.h"

namespace tierkv::quant {

// n % 16 == 0.
inline float largest(const float* x, uint32_t n) {
  const Kernels* kernels = active_kernels();
  return kernels ? kernels->largest(x, n) : *std::max_element(x, x + n);
}

// x becomes e^(x - top); returns the sum. n % 16 == 0.
inline float exp_sum(float* x, uint32_t n, float top) {
  if (const Kernels* kernels = active_kernels()) return kernels->exp_sum(x, n, top);
  float sum = 0.0f;
  for (uint32_t i = 0; i < n; ++i) {
    x[i] = std::exp(x[i] - top);
    sum += x[i];
  }
  return sum;
}

// The same, and the weights a second time in two bytes each; what shares of them give each token; a statistic that fades and grows:
// kernels.h has all three.
inline float exp_sum_kept(float* x, uint32_t n, float top, uint16_t* kept) {
  if (const Kernels* kernels = active_kernels()) return kernels->exp_sum_kept(x, n, top, kept);
  const float sum = exp_sum(x, n, top);
  for (uint32_t i = 0; i < n; ++i) kept[i] = f32_to_f16(x[i] * kKeptUnit);
  return sum;
}

inline void fade_add(float* stats, float fade, const float* sums, uint32_t n) {
  if (const Kernels* kernels = active_kernels()) return kernels->fade_add(stats, fade, sums, n);
  for (uint32_t t = 0; t < n; ++t) stats[t] = stats[t] * fade + sums[t];
}

inline void sum_kept(const uint16_t* kept, size_t stride, const float* shares, uint32_t count, uint32_t n, bool add, float* sums) {
  if (const Kernels* kernels = active_kernels()) return kernels->sum_kept(kept, stride, shares, count, n, add, sums);
  if (!add) std::fill_n(sums, n, 0.0f);
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t t = 0; t < n; ++t) sums[t] += shares[i] * f16_to_f32(kept[i * stride + t]);
  }
}

inline float product(const float* a, const float* b, uint32_t n) {
  if (const Kernels* kernels = active_kernels()) return kernels->dot(a, b, n);
  double sum = 0.0;
  for (uint32_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return static_cast<float>(sum);
}

// acc[i] += the sum over rows of weights[i*stride + t] * decoded[t]; acc and decoded have d channels a row.
inline void add_weighted(const float* decoded, uint32_t rows, uint32_t d, const float* weights, size_t stride, uint32_t count,
                         float* acc) {
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t t = 0; t < rows; ++t) {
      for (uint32_t c = 0; c < d; ++c)
        acc[static_cast<size_t>(i) * d + c] += weights[i * stride + t] * decoded[static_cast<size_t>(t) * d + c];
    }
  }
}

}  // namespace tierkv::quant
