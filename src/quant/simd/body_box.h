// body_box.h — what queries can find in the box of a block's keys (key_box.h). See body_codes.h.
#pragma once

#include "quant/simd/body_codes.h"

namespace tierkv::quant {
namespace {

TIERKV_INLINE float bf16_step(const std::byte* steps, uint32_t run) {
  uint16_t half;
  __builtin_memcpy(&half, steps + run * sizeof half, sizeof half);
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float step;
  __builtin_memcpy(&step, &bits, sizeof step);
  return step;
}

template <uint32_t N>
TIERKV_INLINE void box_batch(const std::byte* box, uint32_t dim, const float* queries, float* out) {
  const std::byte* const middles = box + dim / kBoxRun * 4;  // behind the steps
  const std::byte* const reaches = middles + dim;
  F middle[N], reach[N], squares[N];
  for (uint32_t i = 0; i < N; ++i) middle[i] = reach[i] = squares[i] = splat(0.0f);
  for (uint32_t run = 0; run < dim / kBoxRun; ++run) {
    const F step = splat(bf16_step(box, run)), width = splat(bf16_step(box, dim / kBoxRun + run));
    for (uint32_t c = run * kBoxRun; c < (run + 1) * kBoxRun; c += kLanes) {
      const F m = mul(step, to_floats(sub_words(load_bytes(middles + c), splat_word(128))));
      const F r = mul(width, to_floats(load_bytes(reaches + c)));
      for (uint32_t i = 0; i < N; ++i) {
        const F q = load(queries + static_cast<size_t>(i) * dim + c);
        const F wide = mul(abs(q), r);
        middle[i] = fma(q, m, middle[i]);
        reach[i] = add(reach[i], wide);
        squares[i] = fma(wide, wide, squares[i]);
      }
    }
  }
  for (uint32_t i = 0; i < N; ++i) {
    float sums[4];
    sum_four(middle[i], reach[i], squares[i], squares[i], sums);
    for (uint32_t k = 0; k < 3; ++k) out[3 * i + k] = sums[k];
  }
}

void box_scores(const std::byte* box, uint32_t dim, const float* queries, uint32_t count, float* out) {
  while (count > 0) {
    const uint32_t take = smaller(count, 4);
    switch (take) {
      case 1: box_batch<1>(box, dim, queries, out); break;
      case 2: box_batch<2>(box, dim, queries, out); break;
      case 3: box_batch<3>(box, dim, queries, out); break;
      default: box_batch<4>(box, dim, queries, out); break;
    }
    count -= take;
    queries += static_cast<size_t>(take) * dim;
    out += 3 * take;
  }
}

}  // namespace
}  // namespace tierkv::quant
