// body_pairs.h — rows of floats times a matrix of 16-bit integers, two channels in a word. See body_codes.h.
#pragma once

#include "quant/simd/body_codes.h"

namespace tierkv::quant {
namespace {

void pair_rows(const uint16_t* halves, uint32_t dim, uint32_t n, const float* scales, int32_t* out) {
  const I low = splat_word(0xFFFF);
  for (uint32_t c = 0; c < dim; c += 2, halves += 2 * static_cast<size_t>(n), out += n) {
    for (uint32_t j = 0; j < n; j += kLanes) {
      const F scale = load(scales + j);
      const I first = to_words(mul(load_f16(halves + j), scale)), second = to_words(mul(load_f16(halves + n + j), scale));
      store_words(out + j, bit_or(bit_and(first, low), left<16>(second)));
    }
  }
}

TIERKV_INLINE I splat_pair(const uint16_t* two) {
  int32_t word;
  __builtin_memcpy(&word, two, sizeof word);
  return splat_word(word);
}

// kVectors vectors of N products stay in registers while the rows of the matrix pass by.
template <uint32_t N, uint32_t kVectors>
TIERKV_INLINE void multiply_pair_columns(const int32_t* matrix, const float* units, uint32_t n, const uint16_t* rows, uint32_t dim,
                                         const float* back, float* out) {
  I sums[N][kVectors];
  for (uint32_t i = 0; i < N; ++i) {
    for (uint32_t v = 0; v < kVectors; ++v) sums[i][v] = zero_words();
  }
  for (uint32_t c = 0; c < dim; c += 2, matrix += n) {
    I x[kVectors];
    for (uint32_t v = 0; v < kVectors; ++v) x[v] = load_words(matrix + v * kLanes);
    for (uint32_t i = 0; i < N; ++i) {
      const I q = splat_pair(rows + static_cast<size_t>(i) * dim + c);
      for (uint32_t v = 0; v < kVectors; ++v) sums[i][v] = add_pair_products(sums[i][v], x[v], q);
    }
  }
  for (uint32_t i = 0; i < N; ++i) {
    for (uint32_t v = 0; v < kVectors; ++v) {
      const F unit = mul(load(units + v * kLanes), splat(back[i]));
      store(out + static_cast<size_t>(i) * n + v * kLanes, mul(to_floats(sums[i][v]), unit));
    }
  }
}

template <uint32_t N>
void multiply_pairs(const int32_t* matrix, const float* units, uint32_t n, const float* rows, const float* scales, uint32_t dim,
                    float* out) {
  constexpr uint32_t kVectors = kLanes == 8 ? 2 : 4;  // AVX2 has 16 registers, the others 32
  alignas(64) uint16_t asked[N * 256];
  float back[N];
  for (uint32_t i = 0; i < N; ++i) {
    const F scale = splat(scales[i]);
    for (uint32_t c = 0; c < dim; c += kLanes)
      store_halves(asked + i * dim + c, to_words(mul(load(rows + static_cast<size_t>(i) * dim + c), scale)));
    back[i] = scales[i] > 0.0f ? 1.0f / scales[i] : 0.0f;
  }
  uint32_t j = 0;
  for (; j + kVectors * kLanes <= n; j += kVectors * kLanes)
    multiply_pair_columns<N, kVectors>(matrix + j, units + j, n, asked, dim, back, out + j);
  if constexpr (kVectors > 2) {
    for (; j + 3 * kLanes <= n; j += 3 * kLanes) multiply_pair_columns<N, 3>(matrix + j, units + j, n, asked, dim, back, out + j);
    for (; j + 2 * kLanes <= n; j += 2 * kLanes) multiply_pair_columns<N, 2>(matrix + j, units + j, n, asked, dim, back, out + j);
  }
  for (; j < n; j += kLanes) multiply_pair_columns<N, 1>(matrix + j, units + j, n, asked, dim, back, out + j);
}

void multiply_pairs(const int32_t* matrix, const float* units, uint32_t n, const float* rows, const float* scales, uint32_t dim,
                    uint32_t count, float* out) {
  while (count > 0) {
    const uint32_t take = smaller(count, 4);
    switch (take) {
      case 1: multiply_pairs<1>(matrix, units, n, rows, scales, dim, out); break;
      case 2: multiply_pairs<2>(matrix, units, n, rows, scales, dim, out); break;
      case 3: multiply_pairs<3>(matrix, units, n, rows, scales, dim, out); break;
      default: multiply_pairs<4>(matrix, units, n, rows, scales, dim, out); break;
    }
    count -= take;
    rows += static_cast<size_t>(take) * dim;
    scales += take;
    out += static_cast<size_t>(take) * n;
  }
}

}  // namespace
}  // namespace tierkv::quant
