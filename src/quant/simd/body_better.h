// body_better.h — rows of 3-bit codes (overlaid.h): a few of them meet a few queries or weights. See body_codes.h.
#pragma once

#include "quant/simd/body_codes.h"

namespace tierkv::quant {
namespace {

// kRows rows are unpacked in registers and meet N queries.
template <uint32_t N, uint32_t kRows>
TIERKV_INLINE void three_bit_products(const uint8_t* codes, uint32_t dim, const float* queries, float* out, size_t stride) {
  const size_t row_bytes = dim / 8 * 3;
  F acc[kRows][N];
  for (uint32_t t = 0; t < kRows; ++t) {
    for (uint32_t i = 0; i < N; ++i) acc[t][i] = splat(0.0f);
  }
  for (uint32_t c = 0; c < dim; c += kLanes) {
    F x[kRows];
    for (uint32_t t = 0; t < kRows; ++t) x[t] = load_threes(codes + t * row_bytes, c);
    for (uint32_t i = 0; i < N; ++i) {
      const F q = load(queries + static_cast<size_t>(i) * dim + c);
      for (uint32_t t = 0; t < kRows; ++t) acc[t][i] = fma(x[t], q, acc[t][i]);
    }
  }
  for (uint32_t i = 0; i < N; ++i) {
    if constexpr (kRows == 4) sum_four(acc[0][i], acc[1][i], acc[2][i], acc[3][i], out + i * stride);
    else out[i * stride] = sum(acc[0][i]);
  }
}

template <uint32_t N>
void three_bit_scores(const uint8_t* codes, uint32_t dim, const float* queries, uint32_t n, float* out, size_t stride) {
  const size_t row_bytes = dim / 8 * 3;
  uint32_t t = 0;
  if constexpr (N * 4 <= (kLanes == 16 ? 16 : 8)) {  // sums that registers hold
    for (; t + 4 <= n; t += 4) three_bit_products<N, 4>(codes + t * row_bytes, dim, queries, out + t, stride);
  }
  for (; t < n; ++t) three_bit_products<N, 1>(codes + t * row_bytes, dim, queries, out + t, stride);
}

void three_bit_scores(const std::byte* codes, uint32_t dim, const float* queries, uint32_t count, uint32_t n, float* out,
                      size_t stride) {
  const auto* rows = reinterpret_cast<const uint8_t*>(codes);
  while (count > 0) {
    const uint32_t take = smaller(count, 4);
    switch (take) {
      case 1: three_bit_scores<1>(rows, dim, queries, n, out, stride); break;
      case 2: three_bit_scores<2>(rows, dim, queries, n, out, stride); break;
      case 3: three_bit_scores<3>(rows, dim, queries, n, out, stride); break;
      default: three_bit_scores<4>(rows, dim, queries, n, out, stride); break;
    }
    count -= take;
    queries += static_cast<size_t>(take) * dim;
    out += take * stride;
  }
}

// kRows rows at a time, so that an output is read and written once for all of them.
template <uint32_t N, uint32_t kRows>
TIERKV_INLINE void add_three_bit_rows(const uint8_t* codes, uint32_t dim, const float* weights, size_t stride, float* acc) {
  const size_t row_bytes = dim / 8 * 3;
  for (uint32_t c = 0; c < dim; c += kLanes) {
    F x[kRows];
    for (uint32_t t = 0; t < kRows; ++t) x[t] = load_threes(codes + t * row_bytes, c);
    for (uint32_t i = 0; i < N; ++i) {
      F sum = load(acc + static_cast<size_t>(i) * dim + c);
      for (uint32_t t = 0; t < kRows; ++t) sum = fma(splat(weights[i * stride + t]), x[t], sum);
      store(acc + static_cast<size_t>(i) * dim + c, sum);
    }
  }
}

template <uint32_t N>
void add_three_bit_rows(const uint8_t* codes, uint32_t dim, const float* weights, size_t stride, uint32_t n, float* acc) {
  const size_t row_bytes = dim / 8 * 3;
  uint32_t t = 0;
  for (; t + 4 <= n; t += 4) add_three_bit_rows<N, 4>(codes + t * row_bytes, dim, weights + t, stride, acc);
  for (; t < n; ++t) add_three_bit_rows<N, 1>(codes + t * row_bytes, dim, weights + t, stride, acc);
}

void three_bit_accumulate(const std::byte* codes, uint32_t dim, const float* weights, size_t stride, uint32_t count, uint32_t n,
                          float* acc) {
  const auto* rows = reinterpret_cast<const uint8_t*>(codes);
  while (count > 0) {
    const uint32_t take = smaller(count, 4);
    switch (take) {
      case 1: add_three_bit_rows<1>(rows, dim, weights, stride, n, acc); break;
      case 2: add_three_bit_rows<2>(rows, dim, weights, stride, n, acc); break;
      case 3: add_three_bit_rows<3>(rows, dim, weights, stride, n, acc); break;
      default: add_three_bit_rows<4>(rows, dim, weights, stride, n, acc); break;
    }
    count -= take;
    weights += take * stride;
    acc += static_cast<size_t>(take) * dim;
  }
}

}  // namespace
}  // namespace tierkv::quant
