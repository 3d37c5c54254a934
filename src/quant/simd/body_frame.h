// body_frame.h — rows of floats before they are coded: rotation, sums, checks, narrowing. See body_codes.h.
//
// Every result has the bits of the scalar code (grid.cc, lanes.cc, frame.cc): groups lie one a lane, so that the sums of a group
// run in its own order whatever the width of a register, and nothing that rounds is fused.
#pragma once

#include "quant/simd/body_codes.h"

namespace tierkv::quant {
namespace {

// --- rotation

void walsh_hadamard(float* x, uint32_t n) {
  for (uint32_t i = 0; i < n; i += kLanes) {
    F v = load(x + i);
    v = butterfly<1>(v);
    v = butterfly<2>(v);
    if constexpr (kLanes > 4) v = butterfly<4>(v);
    if constexpr (kLanes > 8) v = butterfly<8>(v);
    store(x + i, v);
  }
  for (uint32_t half = kLanes; half < n; half *= 2) {
    for (uint32_t base = 0; base < n; base += 2 * half) {
      for (uint32_t i = base; i < base + half; i += kLanes) {
        const F a = load(x + i), b = load(x + i + half);
        store(x + i, add(a, b));
        store(x + i + half, sub(a, b));
      }
    }
  }
}

// Every index a constant, or the compiler keeps the vectors in memory.
template <uint32_t kHalf, uint32_t N>
TIERKV_INLINE void butterflies(F (&v)[N]) {
  if constexpr (kHalf < N) {
#pragma GCC unroll 16
    for (uint32_t k = 0; k < N / 2; ++k) {
      const uint32_t i = k / kHalf * 2 * kHalf + k % kHalf;
      const F a = v[i], b = v[i + kHalf];
      v[i] = add(a, b);
      v[i + kHalf] = sub(a, b);
    }
    butterflies<2 * kHalf, N>(v);
  }
}

// A run that fits the registers stays there: signs, where there are some, and the transform.
template <uint32_t N>
TIERKV_INLINE void turn_run(const float* in, const float* signs, F (&v)[N]) {
#pragma GCC unroll 16
  for (uint32_t i = 0; i < N; ++i) {
    v[i] = load(in + i * kLanes);
    if (signs) v[i] = mul(v[i], load(signs + i * kLanes));
    v[i] = butterfly<1>(v[i]);
    v[i] = butterfly<2>(v[i]);
    if constexpr (kLanes > 4) v[i] = butterfly<4>(v[i]);
    if constexpr (kLanes > 8) v[i] = butterfly<8>(v[i]);
  }
  butterflies<1, N>(v);
}

template <uint32_t N, bool kForward>
TIERKV_INLINE void rotate_run(const float* in, const float* signs, float* out) {
  F v[N];
  turn_run<N>(in, kForward ? signs : nullptr, v);
#pragma GCC unroll 16
  for (uint32_t i = 0; i < N; ++i) store(out + i * kLanes, kForward ? v[i] : mul(v[i], load(signs + i * kLanes)));
}

template <uint32_t N>
void rotate_rows(const float* in, uint32_t rows, uint32_t dim, const float* signs, bool forward, float* out) {
  for (uint32_t r = 0; r < rows; ++r, in += dim, out += dim) {
    for (uint32_t c = 0; c < dim; c += N * kLanes) {
      if (forward) rotate_run<N, true>(in + c, signs + c, out + c);
      else rotate_run<N, false>(in + c, signs + c, out + c);
    }
  }
}

void rotate_rows(const float* in, uint32_t rows, uint32_t dim, uint32_t run, const float* signs, bool forward, float* out) {
  switch (run / kLanes) {
    case 1: return rotate_rows<1>(in, rows, dim, signs, forward, out);
    case 2: return rotate_rows<2>(in, rows, dim, signs, forward, out);
    case 4: return rotate_rows<4>(in, rows, dim, signs, forward, out);
    case 8: return rotate_rows<8>(in, rows, dim, signs, forward, out);
    case 16: return rotate_rows<16>(in, rows, dim, signs, forward, out);
    default: break;
  }
  for (uint32_t r = 0; r < rows; ++r, in += dim, out += dim) {
    for (uint32_t c = 0; c < dim; c += kLanes) store(out + c, forward ? mul(load(in + c), load(signs + c)) : load(in + c));
    for (uint32_t c = 0; c < dim; c += run) walsh_hadamard(out + c, run);
    for (uint32_t c = 0; c < dim && !forward; c += kLanes) store(out + c, mul(load(out + c), load(signs + c)));
  }
}

void turn_rows(const float* in, uint32_t rows, uint32_t dim, uint32_t apart, const float* step, float* out) {
  for (uint32_t r = 0; r < rows; ++r, in += dim, out += dim) {
    for (uint32_t c = 0; c < dim; c += kLanes) {
      const F own = load(in + c);
      const uint32_t other = c < apart ? c + apart : c < 2 * apart ? c - apart : c;
      const F pair = apart == 1 ? swap_neighbours(own) : load(in + other);
      store(out + c, fma(pair, load(step + dim + c), mul(own, load(step + c))));
    }
  }
}

// --- rows

void column_sums(const float* in, uint32_t rows, uint32_t dim, float* sums) {
  for (uint32_t c = 0; c < dim; c += 16) {
    F sum[16 / kLanes];
    for (F& s : sum) s = splat(0.0f);
    for (uint32_t t = 0; t < rows; ++t) {
      for (uint32_t k = 0; k < 16 / kLanes; ++k) sum[k] = add(sum[k], load(in + static_cast<size_t>(t) * dim + c + k * kLanes));
    }
    for (uint32_t k = 0; k < 16 / kLanes; ++k) store(sums + c + k * kLanes, sum[k]);
  }
}

void add_row(const float* in, const float* row, uint32_t rows, uint32_t dim, float* out) {
  for (uint32_t t = 0; t < rows; ++t, in += dim, out += dim) {
    for (uint32_t c = 0; c < dim; c += kLanes) store(out + c, add(load(in + c), load(row + c)));
  }
}

// kRows rows share what is loaded of the matrix.
template <uint32_t kRows>
TIERKV_INLINE void project(const float* rows, uint32_t dim, const float* matrix, uint32_t n, const float* start, float* out) {
  for (uint32_t j = 0; j < n; j += 16) {
    F sums[kRows][16 / kLanes];
    for (uint32_t r = 0; r < kRows; ++r) {
      for (uint32_t k = 0; k < 16 / kLanes; ++k) sums[r][k] = load(start + j + k * kLanes);
    }
    for (uint32_t c = 0; c < dim; ++c) {
      for (uint32_t k = 0; k < 16 / kLanes; ++k) {
        const F parts = load(matrix + static_cast<size_t>(c) * n + j + k * kLanes);
        for (uint32_t r = 0; r < kRows; ++r)
          sums[r][k] = add(sums[r][k], mul(splat(rows[static_cast<size_t>(r) * dim + c]), parts));
      }
    }
    for (uint32_t r = 0; r < kRows; ++r) {
      for (uint32_t k = 0; k < 16 / kLanes; ++k) store(out + static_cast<size_t>(r) * n + j + k * kLanes, sums[r][k]);
    }
  }
}

void project_rows(const float* rows, uint32_t count, uint32_t dim, const float* matrix, uint32_t n, const float* start,
                  float* out) {
  uint32_t r = 0;
  for (; r + 4 <= count; r += 4)
    project<4>(rows + static_cast<size_t>(r) * dim, dim, matrix, n, start, out + static_cast<size_t>(r) * n);
  for (; r < count; ++r) project<1>(rows + static_cast<size_t>(r) * dim, dim, matrix, n, start, out + static_cast<size_t>(r) * n);
}

bool within(const float* x, size_t n, float limit) {
  // As integers magnitudes keep their order, infinity and NaN above all others: a difference below zero is one too large.
  const I most = as_words(splat(limit));
  I beyond = zero_words();
  for (size_t i = 0; i < n; i += kLanes) beyond = bit_or(beyond, sub_words(most, as_words(abs(load(x + i)))));
  int32_t found[kLanes];
  store_words(found, beyond);
  int32_t any = 0;
  for (const int32_t f : found) any |= f;
  return any >= 0;
}

void narrow(const float* in, bool bf16, uint32_t n, uint16_t* out) {
  for (uint32_t i = 0; i < n; i += kLanes) {
    const F v = load(in + i);
    if (bf16) {
      const I bits = as_words(v);
      const I odd = bit_and(right<16>(bits), splat_word(1));
      store_halves(out + i, right<16>(add_words(add_words(bits, splat_word(0x7FFF)), odd)));
    } else {
      store_f16(out + i, v);
    }
  }
}

}  // namespace
}  // namespace tierkv::quant
