// kernels_body.h — the loops themselves, for whatever instruction set the including file is compiled; it includes nothing else of
// ours but kernels.h and is included once per file. Fixed trip counts let a compiler keep tiles in registers.
#include <cstddef>
#include <cstdint>

#include "deep/kernels.h"

namespace tierkv::deep {
namespace {

template <int kTokens>
void dots_of(const int16_t* row, const int16_t* sources, uint32_t dim, int64_t* out) {
  int32_t sum[kTokens] = {};
  for (uint32_t j = 0; j < dim; ++j) {
    for (int t = 0; t < kTokens; ++t)
      sum[t] += static_cast<int32_t>(row[j]) * static_cast<int32_t>(sources[static_cast<size_t>(t) * dim + j]);
  }
  for (int t = 0; t < kTokens; ++t) out[static_cast<size_t>(t) * dim] += sum[t];
}

void dots(const int16_t* matrix, const int16_t* sources, uint32_t dim, uint32_t tokens, int64_t* out) {
  for (uint32_t i = 0; i < dim; ++i) {
    const int16_t* row = matrix + static_cast<size_t>(i) * dim;
    uint32_t t = 0;
    for (; t + 4 <= tokens; t += 4)
      dots_of<4>(row, sources + static_cast<size_t>(t) * dim, dim, out + static_cast<size_t>(t) * dim + i);
    for (; t < tokens; ++t) dots_of<1>(row, sources + static_cast<size_t>(t) * dim, dim, out + static_cast<size_t>(t) * dim + i);
  }
}

template <int kTokens, int kWidth>
void analyse_tile(const float* rows, const float* matrix, uint32_t dim, float* out) {
  float sum[kTokens][kWidth] = {};
  for (uint32_t c = 0; c < dim; ++c) {
    const float* m = matrix + static_cast<size_t>(c) * dim;
    for (int t = 0; t < kTokens; ++t) {
      const float x = rows[static_cast<size_t>(t) * dim + c];
      for (int j = 0; j < kWidth; ++j) sum[t][j] += x * m[j];
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int j = 0; j < kWidth; ++j) out[static_cast<size_t>(t) * dim + static_cast<size_t>(j)] = sum[t][j];
  }
}

// REQUIRES: dim % 32 == 0, which head_dim % 16 == 0 gives.
void analyse(const float* rows, const float* matrix, uint32_t dim, uint32_t tokens, float* out) {
  constexpr int kWidth = TIERKV_DEEP_TILE;
  for (uint32_t j = 0; j + kWidth <= dim; j += kWidth) {
    uint32_t t = 0;
    for (; t + 4 <= tokens; t += 4) {
      analyse_tile<4, kWidth>(rows + static_cast<size_t>(t) * dim, matrix + j, dim, out + static_cast<size_t>(t) * dim + j);
    }
    for (; t < tokens; ++t)
      analyse_tile<1, kWidth>(rows + static_cast<size_t>(t) * dim, matrix + j, dim, out + static_cast<size_t>(t) * dim + j);
  }
}

void synthesise(const Term* terms, uint32_t count, const float* matrix, uint32_t dim, float* out) {
  uint32_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const float *a = matrix + static_cast<size_t>(terms[i].row) * dim, *b = matrix + static_cast<size_t>(terms[i + 1].row) * dim;
    const float *c = matrix + static_cast<size_t>(terms[i + 2].row) * dim,
                *d = matrix + static_cast<size_t>(terms[i + 3].row) * dim;
    const float fa = terms[i].factor, fb = terms[i + 1].factor, fc = terms[i + 2].factor, fd = terms[i + 3].factor;
    for (uint32_t k = 0; k < dim; ++k) out[k] = (((out[k] + fa * a[k]) + fb * b[k]) + fc * c[k]) + fd * d[k];
  }
  for (; i < count; ++i) {
    const float* a = matrix + static_cast<size_t>(terms[i].row) * dim;
    const float fa = terms[i].factor;
    for (uint32_t k = 0; k < dim; ++k) out[k] += fa * a[k];
  }
}

}  // namespace
}  // namespace tierkv::deep
