// body_rows.h — kernels on rows of floats: 16-bit rows, metadata lookups, the Walsh–Hadamard transform. See body_codes.h.
#pragma once

#include "quant/simd/body_better.h"
#include "quant/simd/body_blocks.h"
#include "quant/simd/body_box.h"
#include "quant/simd/body_fit.h"
#include "quant/simd/body_frame.h"
#include "quant/simd/body_keys.h"
#include "quant/simd/body_mass.h"
#include "quant/simd/body_pairs.h"
#include "quant/simd/body_values.h"

namespace tierkv::quant {
namespace {

// --- rows of 16-bit floats

template <bool kBf16>
TIERKV_INLINE F load_half(const uint16_t* p) {
  return kBf16 ? load_bf16(p) : load_f16(p);
}

// Few queries: kRows rows are widened in registers and meet N queries, each of which is loaded once for all of them.
template <bool kBf16, uint32_t N, uint32_t kRows>
TIERKV_INLINE void few_scores(const uint16_t* rows, uint32_t dim, const float* queries, float* out, size_t stride,
                              Prefetcher& prefetcher) {
  F acc[kRows][N];
  for (uint32_t t = 0; t < kRows; ++t) {
    for (uint32_t i = 0; i < N; ++i) acc[t][i] = splat(0.0f);
  }
  for (uint32_t c = 0; c < dim; c += kLanes) {
    prefetcher.step();
    F x[kRows];
    for (uint32_t t = 0; t < kRows; ++t) x[t] = load_half<kBf16>(rows + static_cast<size_t>(t) * dim + c);
    for (uint32_t i = 0; i < N; ++i) {
      const F q = load(queries + static_cast<size_t>(i) * dim + c);
      for (uint32_t t = 0; t < kRows; ++t) acc[t][i] = fma(x[t], q, acc[t][i]);
    }
  }
  for (uint32_t i = 0; i < N; ++i) {
    if constexpr (kRows == 1) {
      out[i * stride] = sum(acc[0][i]);
    } else {
      for (uint32_t t = 0; t < kRows; t += 4)
        sum_four(acc[t][i], acc[t + 1][i], acc[t + 2][i], acc[t + 3][i], out + i * stride + t);
    }
  }
}

template <bool kBf16, uint32_t N>
void few_scores(const uint16_t* rows, uint32_t dim, const float* queries, uint32_t n, float* out, size_t stride,
                const Ahead& ahead) {
  // As many sums as registers hold, and for one query enough of them that no addition waits for the one before.
  constexpr uint32_t kRows = N == 1 ? 8 : N * 4 <= (kLanes == 16 ? 16 : 8) ? 4 : 1;
  Prefetcher prefetcher(ahead, n / kRows * (dim / kLanes));
  uint32_t t = 0;
  for (; t + kRows <= n; t += kRows) {
    few_scores<kBf16, N, kRows>(rows + static_cast<size_t>(t) * dim, dim, queries, out + t, stride, prefetcher);
  }
  for (; t < n; ++t) few_scores<kBf16, N, 1>(rows + static_cast<size_t>(t) * dim, dim, queries, out + t, stride, prefetcher);
}

// sums of N queries with 16 rows that lie channel by channel: tile[c*16 + row].
template <uint32_t N>
TIERKV_INLINE void tile_scores(const float* tile, uint32_t dim, const float* queries, uint32_t live, float* out, size_t stride) {
  for (uint32_t part = 0; part < kTile && part < live; part += kLanes) {
    F acc[N];
    for (uint32_t i = 0; i < N; ++i) acc[i] = splat(0.0f);
    for (uint32_t c = 0; c < dim; ++c) {
      const F x = load(tile + static_cast<size_t>(c) * kTile + part);
      for (uint32_t i = 0; i < N; ++i) acc[i] = fma(x, splat(queries[static_cast<size_t>(i) * dim + c]), acc[i]);
    }
    for (uint32_t i = 0; i < N; ++i) store_up_to(out + i * stride + part, acc[i], live - part);
  }
}

// Many queries: 16 rows at a time are widened and transposed, so that no sum runs across a register.
template <bool kBf16>
void many_scores(const uint16_t* rows, uint32_t dim, const float* queries, uint32_t count, uint32_t n, float* out, size_t stride,
                 float* tile) {
  for (uint32_t first = 0; first < n; first += kTile) {
    const uint32_t live = smaller(kTile, n - first);
    for (uint32_t r = 0; r < kTile; ++r) {
      float wide[kLanes];
      const uint16_t* row = rows + static_cast<size_t>(first + smaller(r, live - 1)) * dim;
      for (uint32_t c = 0; c < dim; c += kLanes) {
        store(wide, load_half<kBf16>(row + c));
        for (uint32_t k = 0; k < kLanes; ++k) tile[static_cast<size_t>(c + k) * kTile + r] = wide[k];
      }
    }
    uint32_t i = 0;
    for (; i + 8 <= count; i += 8)
      tile_scores<8>(tile, dim, queries + static_cast<size_t>(i) * dim, live, out + i * stride + first, stride);
    for (; i + 2 <= count; i += 2)
      tile_scores<2>(tile, dim, queries + static_cast<size_t>(i) * dim, live, out + i * stride + first, stride);
    for (; i < count; ++i)
      tile_scores<1>(tile, dim, queries + static_cast<size_t>(i) * dim, live, out + i * stride + first, stride);
  }
}

template <bool kBf16>
void half_scores(const uint16_t* rows, uint32_t dim, const float* queries, uint32_t count, uint32_t n, float* out, size_t stride,
                 float* scratch, const Ahead& ahead) {
  switch (count) {
    case 1: return few_scores<kBf16, 1>(rows, dim, queries, n, out, stride, ahead);
    case 2: return few_scores<kBf16, 2>(rows, dim, queries, n, out, stride, ahead);
    case 3: return few_scores<kBf16, 3>(rows, dim, queries, n, out, stride, ahead);
    case 4: return few_scores<kBf16, 4>(rows, dim, queries, n, out, stride, ahead);
    case 8: return few_scores<kBf16, 8>(rows, dim, queries, n, out, stride, ahead);
    default: return many_scores<kBf16>(rows, dim, queries, count, n, out, stride, scratch);
  }
}

void half_scores(const uint16_t* rows, bool bf16, uint32_t dim, const float* queries, uint32_t count, uint32_t n, float* out,
                 size_t stride, float* scratch, const Ahead& ahead) {
  if (bf16) half_scores<true>(rows, dim, queries, count, n, out, stride, scratch, ahead);
  else half_scores<false>(rows, dim, queries, count, n, out, stride, scratch, ahead);
}

// kVectors vectors of channels of N outputs stay in registers while all rows pass by.
template <bool kBf16, uint32_t N, uint32_t kVectors>
TIERKV_INLINE void add_columns(const uint16_t* rows, uint32_t dim, const float* weights, size_t stride, uint32_t n, float* acc,
                               const Ahead& ahead) {
  F sums[N][kVectors];
  for (uint32_t i = 0; i < N; ++i) {
    for (uint32_t v = 0; v < kVectors; ++v) sums[i][v] = load(acc + static_cast<size_t>(i) * dim + v * kLanes);
  }
  Prefetcher prefetcher(ahead, n);
  for (uint32_t t = 0; t < n; ++t) {
    prefetcher.step();
    F x[kVectors];
    for (uint32_t v = 0; v < kVectors; ++v) x[v] = load_half<kBf16>(rows + static_cast<size_t>(t) * dim + v * kLanes);
    for (uint32_t i = 0; i < N; ++i) {
      const F w = splat(weights[i * stride + t]);
      for (uint32_t v = 0; v < kVectors; ++v) sums[i][v] = fma(w, x[v], sums[i][v]);
    }
  }
  for (uint32_t i = 0; i < N; ++i) {
    for (uint32_t v = 0; v < kVectors; ++v) store(acc + static_cast<size_t>(i) * dim + v * kLanes, sums[i][v]);
  }
}

template <bool kBf16, uint32_t N>
void add_rows(const uint16_t* rows, uint32_t dim, const float* weights, size_t stride, uint32_t n, float* acc, const Ahead& ahead) {
  // AVX2 has 16 registers, the others 32; one output needs eight sums so that no addition waits for the one before.
  constexpr uint32_t kVectors = N == 1 ? 8 : kLanes == 8 || N > 4 ? 2 : 4;
  uint32_t c = 0;
  for (; c + kVectors * kLanes <= dim; c += kVectors * kLanes) {
    add_columns<kBf16, N, kVectors>(rows + c, dim, weights, stride, n, acc + c, c == 0 ? ahead : Ahead());
  }
  for (; c + 4 * kLanes <= dim && kVectors > 4; c += 4 * kLanes) {
    add_columns<kBf16, N, 4>(rows + c, dim, weights, stride, n, acc + c, c == 0 ? ahead : Ahead());
  }
  for (; c + 3 * kLanes <= dim && kVectors > 3; c += 3 * kLanes) {
    add_columns<kBf16, N, 3>(rows + c, dim, weights, stride, n, acc + c, c == 0 ? ahead : Ahead());
  }
  for (; c + 2 * kLanes <= dim && kVectors > 2; c += 2 * kLanes) {
    add_columns<kBf16, N, 2>(rows + c, dim, weights, stride, n, acc + c, c == 0 ? ahead : Ahead());
  }
  for (; c < dim; c += kLanes) add_columns<kBf16, N, 1>(rows + c, dim, weights, stride, n, acc + c, c == 0 ? ahead : Ahead());
}

template <bool kBf16>
void half_accumulate(const uint16_t* rows, uint32_t dim, const float* weights, size_t stride, uint32_t count, uint32_t n,
                     float* acc, const Ahead& ahead) {
  constexpr uint32_t kMost = kLanes == 8 ? 4 : 8;
  while (count > 0) {
    const uint32_t take = count >= kMost ? kMost : count >= 4 ? 4 : count;
    switch (take) {
      case 1: add_rows<kBf16, 1>(rows, dim, weights, stride, n, acc, ahead); break;
      case 2: add_rows<kBf16, 2>(rows, dim, weights, stride, n, acc, ahead); break;
      case 3: add_rows<kBf16, 3>(rows, dim, weights, stride, n, acc, ahead); break;
      case 4: add_rows<kBf16, 4>(rows, dim, weights, stride, n, acc, ahead); break;
      default: add_rows<kBf16, kMost>(rows, dim, weights, stride, n, acc, ahead); break;
    }
    count -= take;
    weights += take * stride;
    acc += static_cast<size_t>(take) * dim;
  }
}

void half_accumulate(const uint16_t* rows, bool bf16, uint32_t dim, const float* weights, size_t stride, uint32_t count, uint32_t n,
                     float* acc, const Ahead& ahead) {
  if (bf16) half_accumulate<true>(rows, dim, weights, stride, count, n, acc, ahead);
  else half_accumulate<false>(rows, dim, weights, stride, count, n, acc, ahead);
}

// kVectors vectors of N products stay in registers while the rows of the matrix pass by.
template <uint32_t N, uint32_t kVectors>
TIERKV_INLINE void multiply_columns(const float* matrix, uint32_t n, const float* rows, uint32_t dim, float* out) {
  F sums[N][kVectors];
  for (uint32_t i = 0; i < N; ++i) {
    for (uint32_t v = 0; v < kVectors; ++v) sums[i][v] = splat(0.0f);
  }
  for (uint32_t c = 0; c < dim; ++c) {
    F x[kVectors];
    for (uint32_t v = 0; v < kVectors; ++v) x[v] = load(matrix + static_cast<size_t>(c) * n + v * kLanes);
    for (uint32_t i = 0; i < N; ++i) {
      const F q = splat(rows[static_cast<size_t>(i) * dim + c]);
      for (uint32_t v = 0; v < kVectors; ++v) sums[i][v] = fma(q, x[v], sums[i][v]);
    }
  }
  for (uint32_t i = 0; i < N; ++i) {
    for (uint32_t v = 0; v < kVectors; ++v) store(out + static_cast<size_t>(i) * n + v * kLanes, sums[i][v]);
  }
}

template <uint32_t N>
void multiply(const float* matrix, uint32_t n, const float* rows, uint32_t dim, float* out) {
  constexpr uint32_t kVectors = kLanes == 8 ? 2 : 4;  // AVX2 has 16 registers, the others 32
  uint32_t j = 0;
  for (; j + kVectors * kLanes <= n; j += kVectors * kLanes) multiply_columns<N, kVectors>(matrix + j, n, rows, dim, out + j);
  if constexpr (kVectors > 2) {
    for (; j + 3 * kLanes <= n; j += 3 * kLanes) multiply_columns<N, 3>(matrix + j, n, rows, dim, out + j);
    for (; j + 2 * kLanes <= n; j += 2 * kLanes) multiply_columns<N, 2>(matrix + j, n, rows, dim, out + j);
  }
  for (; j < n; j += kLanes) multiply_columns<N, 1>(matrix + j, n, rows, dim, out + j);
}

void multiply(const float* matrix, uint32_t n, const float* rows, uint32_t dim, uint32_t count, float* out) {
  while (count > 0) {
    const uint32_t take = smaller(count, 4);
    switch (take) {
      case 1: multiply<1>(matrix, n, rows, dim, out); break;
      case 2: multiply<2>(matrix, n, rows, dim, out); break;
      case 3: multiply<3>(matrix, n, rows, dim, out); break;
      default: multiply<4>(matrix, n, rows, dim, out); break;
    }
    count -= take;
    rows += static_cast<size_t>(take) * dim;
    out += static_cast<size_t>(take) * n;
  }
}

void widen(const uint16_t* in, bool bf16, uint32_t n, float* out) {
  for (uint32_t i = 0; i < n; i += kLanes) store(out + i, bf16 ? load_bf16(in + i) : load_f16(in + i));
}

// --- metadata

void lookup_bytes(const float* table256, float factor, const std::byte* codes, uint32_t n, float* out) {
  const F f = splat(factor);
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, mul(f, gather(table256, load_bytes(codes + i))));
  for (; i < n; ++i) out[i] = factor * table256[static_cast<uint8_t>(codes[i])];
}

void affine_bytes(float lo, float step, const std::byte* codes, uint32_t n, float* out) {
  const F base = splat(lo), width = splat(step);
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, add(base, mul(width, to_floats(load_bytes(codes + i)))));
  for (; i < n; ++i) out[i] = lo + step * static_cast<float>(static_cast<uint8_t>(codes[i]));
}

void lookup_nibbles(const float* levels16, float lo, float step, const std::byte* codes, uint32_t n, float* scales,
                    float* offsets) {
  const Table16 table(levels16);
  const F base = splat(lo), width = splat(step);
  const I mask = splat_word(15);
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const I code = load_bytes(codes + i);
    store(scales + i, table.at(bit_and(code, mask)));
    store(offsets + i, add(base, mul(width, to_floats(right<4>(code)))));
  }
  for (; i < n; ++i) {
    const uint32_t code = static_cast<uint8_t>(codes[i]);
    scales[i] = levels16[code & 15u];
    offsets[i] = lo + step * static_cast<float>(code >> 4);
  }
}

constexpr Kernels make_kernels(const char* isa) {
  return {isa,
          round_queries,
          scores_by_token,
          scores_by_channel,
          scores_by_word,
          accumulate,
          half_scores,
          half_accumulate,
          multiply,
          kFastPairs,
          pair_rows,
          multiply_pairs,
          better_products,
          add_products,
          better_sums,
          box_scores,
          widen,
          lookup_bytes,
          affine_bytes,
          lookup_nibbles,
          largest,
          exp_sum,
          dot,
          fit_lanes,
          transpose_tile,
          encode_tile,
          decode_columns,
          decode_rows,
          rotate_rows,
          turn_rows,
          column_sums,
          add_row,
          project_rows,
          within,
          narrow,
          exp_sum_kept,
          sum_kept,
          fade_add};
}

}  // namespace
}  // namespace tierkv::quant
