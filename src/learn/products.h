// products.h — the sums of products that statistics are made of, on the kernels where there are some.
//
// Rows are fp16 or f32 of dim channels, dim % 16 == 0. Threads: no state.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tierkv::learn {

uint64_t mixed(uint64_t x);  // splitmix64: bits that have nothing to do with each other, the same everywhere

float dot(const float* a, const float* b, uint32_t n);  // n % 16 == 0

// The sum of term(i), in eight sums so that no addition waits for the one before.
template <class Term>
float sum_of(uint32_t n, const Term& term) {
  float sums[8] = {};
  uint32_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (uint32_t k = 0; k < 8; ++k) sums[k] += term(i + k);
  }
  for (; i < n; ++i) sums[0] += term(i);
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// The upper triangle of c += rows' outer products, four rows at a time. count % 4 == 0. Some entries below it are written too.
void add_products(const float* rows, uint32_t count, uint32_t dim, float* c);

// scores[i*stride + t] = dot(queries[i], rows[t]): rows are fp16. scratch: 16*dim floats.
void dot_rows(const uint16_t* rows, uint32_t n, uint32_t dim, const float* queries, uint32_t count, float* scores, size_t stride,
              float* scratch);

// lengths[t] = v_t'·G·v_t for n rows; gram null: |v_t|². scratch: lengths_scratch() floats.
size_t lengths_scratch(uint32_t n, uint32_t dim);
void row_lengths(const uint16_t* rows, uint32_t n, uint32_t dim, const float* gram, float* lengths, float* scratch);

}  // namespace tierkv::learn
