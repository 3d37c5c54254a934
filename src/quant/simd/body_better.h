// body_better.h — rows of 3-bit codes that lie over a block's own (overlaid.h): a few of them meet a few queries or weights. See
// body_codes.h.
#pragma once

#include "quant/simd/body_codes.h"
#include "quant/simd/body_frame.h"

namespace tierkv::quant {
namespace {

// A half float without its sign and its seven lowest bits.
TIERKV_INLINE float step_of(uint8_t stored) {
  const uint32_t bits = static_cast<uint32_t>(stored) << 20;
  float small;
  __builtin_memcpy(&small, &bits, sizeof small);
  return small * 0x1p112f;
}

struct One {
  float at[2 * kLanes] = {};
  constexpr One() { at[kLanes] = 1.0f; }
};
constexpr One kOne;

// row[t] += x. A vector at a time where it fits: whoever reads the scores next reads vectors, and a load that finds a few bytes of
// a vector still on their way to memory waits for them.
TIERKV_INLINE void add_to_row(float* row, uint32_t t, uint32_t rows, float x) {
  const uint32_t first = t / kLanes * kLanes;
  if (first + kLanes > rows) {
    row[t] += x;
    return;
  }
  store(row + first, fma(splat(x), load(kOne.at + kLanes - (t - first)), load(row + first)));
}

// kRows rows from `first` on are unpacked in registers and meet N queries.
template <uint32_t N, uint32_t kRows>
TIERKV_INLINE void better_products(const BetterRows& better, uint32_t first, const float* queries, float* out) {
  const uint32_t dim = better.dim;
  const size_t row_bytes = dim / 8 * 3;
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(better.codes) + first * row_bytes;
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
    float* sums = out + static_cast<size_t>(i) * better.count + first;
    if constexpr (kRows == 4) sum_four(acc[0][i], acc[1][i], acc[2][i], acc[3][i], sums);
    else *sums = sum(acc[0][i]);
  }
}

template <uint32_t N>
void better_products(const BetterRows& better, const float* queries, float* out) {
  uint32_t t = 0;
  if constexpr (N * 4 <= (kLanes == 16 ? 16 : 8)) {  // sums that registers hold
    for (; t + 4 <= better.count; t += 4) better_products<N, 4>(better, t, queries, out);
  }
  for (; t < better.count; ++t) better_products<N, 1>(better, t, queries, out);
}

// Four rows, and queries that are turned in registers on their way, kVectors vectors of a run: the operations and the order of the
// loops above.
template <uint32_t N, uint32_t kVectors>
void turned_products(const BetterRows& better, const float* queries, const float* turn, float* out) {
  const uint32_t dim = better.dim;
  const size_t row_bytes = dim / 8 * 3;
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(better.codes);
  F acc[4][N];
#pragma GCC unroll 16
  for (uint32_t k = 0; k < 4 * N; ++k) acc[k / N][k % N] = splat(0.0f);
  for (uint32_t c = 0; c < dim; c += kVectors * kLanes) {
    F v[N][kVectors];
#pragma GCC unroll 16
    for (uint32_t i = 0; i < N; ++i) turn_run<kVectors>(queries + static_cast<size_t>(i) * dim + c, turn + c, v[i]);
#pragma GCC unroll 16
    for (uint32_t k = 0; k < kVectors; ++k) {
#pragma GCC unroll 16
      for (uint32_t t = 0; t < 4; ++t) {
        const F x = load_threes(codes + t * row_bytes, c + k * kLanes);
#pragma GCC unroll 16
        for (uint32_t i = 0; i < N; ++i) acc[t][i] = fma(x, v[i][k], acc[t][i]);
      }
    }
  }
#pragma GCC unroll 16
  for (uint32_t i = 0; i < N; ++i)
    sum_four(acc[0][i], acc[1][i], acc[2][i], acc[3][i], out + static_cast<size_t>(i) * better.count);
}

// As far as the registers of one set hold what others would have to put away.
template <uint32_t N>
bool turned_products(const BetterRows& better, const float* queries, const float* turn, uint32_t run, float* out) {
  if (kLanes != 16 || better.count != 4) return false;
  switch (run / kLanes) {
    case 1: return turned_products<N, 1>(better, queries, turn, out), true;
    case 2: return turned_products<N, 2>(better, queries, turn, out), true;
    case 4: return N <= 3 && (turned_products<smaller(N, 3), 4>(better, queries, turn, out), true);
    default: return false;
  }
}

bool turned_products(const BetterRows& better, const float* queries, const float* turn, uint32_t run, uint32_t count, float* out) {
  switch (count) {
    case 1: return turned_products<1>(better, queries, turn, run, out);
    case 2: return turned_products<2>(better, queries, turn, run, out);
    case 3: return turned_products<3>(better, queries, turn, run, out);
    case 4: return turned_products<4>(better, queries, turn, run, out);
    default: return false;
  }
}

void better_products(const BetterRows& better, const float* queries, const float* turn, uint32_t run, uint32_t count, float* out) {
  alignas(64) float turned[4 * 256];
  if (turn && turned_products(better, queries, turn, run, count, out)) return;
  while (count > 0) {
    const uint32_t take = smaller(count, 4);
    if (turn) rotate_rows(queries, take, better.dim, run, turn, /*forward=*/true, turned);
    const float* asked = turn ? turned : queries;
    switch (take) {
      case 1: better_products<1>(better, asked, out); break;
      case 2: better_products<2>(better, asked, out); break;
      case 3: better_products<3>(better, asked, out); break;
      default: better_products<4>(better, asked, out); break;
    }
    count -= take;
    queries += static_cast<size_t>(take) * better.dim;
    out += static_cast<size_t>(take) * better.count;
  }
}

void add_products(const BetterRows& better, const float* products, uint32_t count, uint32_t rows, float* out, size_t stride) {
  for (uint32_t t = 0; t < better.count; ++t) {
    const auto at = static_cast<uint32_t>(better.indices[t]);
    const float step = step_of(static_cast<uint8_t>(better.steps[t]));
    for (uint32_t i = 0; i < count; ++i)
      add_to_row(out + i * stride, at, rows, step * products[static_cast<size_t>(i) * better.count + t]);
  }
}

// kVectors vectors of channels of N outputs stay in registers while the rows pass by.
template <uint32_t N, uint32_t kVectors>
TIERKV_INLINE void add_better(const BetterRows& better, uint32_t c, const float* weights, size_t stride, float* acc) {
  const uint32_t dim = better.dim;
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(better.codes);
  F sums[N][kVectors];
  for (uint32_t i = 0; i < N; ++i) {
    for (uint32_t v = 0; v < kVectors; ++v) sums[i][v] = load(acc + static_cast<size_t>(i) * dim + c + v * kLanes);
  }
  for (uint32_t t = 0; t < better.count; ++t, codes += dim / 8 * 3) {
    const auto at = static_cast<uint32_t>(better.indices[t]);
    const float step = step_of(static_cast<uint8_t>(better.steps[t]));
    F x[kVectors];
    for (uint32_t v = 0; v < kVectors; ++v) x[v] = load_threes(codes, c + v * kLanes);
    for (uint32_t i = 0; i < N; ++i) {
      const F w = splat(step * weights[i * stride + at]);
      for (uint32_t v = 0; v < kVectors; ++v) sums[i][v] = fma(w, x[v], sums[i][v]);
    }
  }
  for (uint32_t i = 0; i < N; ++i) {
    for (uint32_t v = 0; v < kVectors; ++v) store(acc + static_cast<size_t>(i) * dim + c + v * kLanes, sums[i][v]);
  }
}

template <uint32_t N>
void better_sums(const BetterRows& better, const float* weights, size_t stride, float* acc) {
  constexpr uint32_t kVectors = kLanes == 8 ? 2 : 4;  // AVX2 has 16 registers, the others 32
  uint32_t c = 0;
  for (; c + kVectors * kLanes <= better.dim; c += kVectors * kLanes) add_better<N, kVectors>(better, c, weights, stride, acc);
  for (; c < better.dim; c += kLanes) add_better<N, 1>(better, c, weights, stride, acc);
}

void better_sums(const BetterRows& better, const float* weights, size_t stride, uint32_t count, float* acc) {
  while (count > 0) {
    const uint32_t take = smaller(count, 4);
    switch (take) {
      case 1: better_sums<1>(better, weights, stride, acc); break;
      case 2: better_sums<2>(better, weights, stride, acc); break;
      case 3: better_sums<3>(better, weights, stride, acc); break;
      default: better_sums<4>(better, weights, stride, acc); break;
    }
    count -= take;
    weights += take * stride;
    acc += static_cast<size_t>(take) * better.dim;
  }
}

}  // namespace
}  // namespace tierkv::quant
