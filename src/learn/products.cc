#include "learn/products.h"

#include "base/f16.h"
#include "quant/isa.h"

namespace tierkv::learn {

uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

float dot(const float* a, const float* b, uint32_t n) {
  if (const quant::Kernels* kernels = quant::active_kernels()) return kernels->dot(a, b, n);
  float sums[8] = {};
  for (uint32_t i = 0; i < n; i += 8) {
    for (uint32_t k = 0; k < 8; ++k) sums[k] += a[i + k] * b[i + k];
  }
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

void add_products(const float* rows, uint32_t count, uint32_t dim, float* __restrict c) {
  for (uint32_t r = 0; r < count; r += 4) {
    const float* __restrict a0 = rows + static_cast<size_t>(r) * dim;
    const float* __restrict a1 = a0 + dim, * __restrict a2 = a1 + dim, * __restrict a3 = a2 + dim;
    for (uint32_t i = 0; i < dim; ++i) {
      const float x0 = a0[i], x1 = a1[i], x2 = a2[i], x3 = a3[i];
      float* __restrict out = c + static_cast<size_t>(i) * dim;
      for (uint32_t j = i / 16 * 16; j < dim; ++j) out[j] += (x0 * a0[j] + x1 * a1[j]) + (x2 * a2[j] + x3 * a3[j]);
    }
  }
}

void dot_rows(const uint16_t* rows, uint32_t n, uint32_t dim, const float* queries, uint32_t count, float* scores, size_t stride,
              float* scratch) {
  if (const quant::Kernels* kernels = quant::active_kernels()) {
    return kernels->half_scores(rows, false, dim, queries, count, n, scores, stride, scratch, {});
  }
  for (uint32_t t = 0; t < n; ++t) {
    for (uint32_t c = 0; c < dim; ++c) scratch[c] = f16_to_f32(rows[static_cast<size_t>(t) * dim + c]);
    for (uint32_t i = 0; i < count; ++i) scores[i * stride + t] = dot(queries + static_cast<size_t>(i) * dim, scratch, dim);
  }
}

size_t lengths_scratch(uint32_t n, uint32_t dim) { return static_cast<size_t>(dim) * n + 17 * static_cast<size_t>(dim); }

void row_lengths(const uint16_t* rows, uint32_t n, uint32_t dim, const float* gram, float* lengths, float* scratch) {
  float *products = scratch + 16 * dim, *row = products + static_cast<size_t>(dim) * n;
  if (gram != nullptr) dot_rows(rows, n, dim, gram, dim, products, n, scratch);
  for (uint32_t t = 0; t < n; ++t) {
    float sum = 0.0f;
    for (uint32_t c = 0; c < dim; ++c) row[c] = f16_to_f32(rows[static_cast<size_t>(t) * dim + c]);
    for (uint32_t c = 0; c < dim; ++c) sum += row[c] * (gram != nullptr ? products[static_cast<size_t>(c) * n + t] : row[c]);
    lengths[t] = sum;
  }
}

}  // namespace tierkv::learn
