// body_values.h — sums of packed values. See body_codes.h.
#pragma once

#include "quant/simd/body_products.h"

namespace tierkv::quant {
namespace {

void accumulate(const PackedSide& side, const std::byte* codes, const float* scales, const float* offsets, const float* weights,
                size_t stride, uint32_t count, uint32_t rows, uint32_t dim, float* acc, const KernelScratch& scratch) {
  const uint32_t planes = side.factor_planes, depth = (rows + 15) / 16 * 16;
  int8_t* factors = scratch.bytes + static_cast<size_t>(side.depth) * 2 * kTile;
  float* folded = scratch.floats;
  float* steps = folded + side.depth;
  float* shifts = steps + count;
  TileDot dot(side, count * planes, reinterpret_cast<uint8_t*>(scratch.bytes));
  Sums sums;
  const uint32_t batch = kMaxBatch / planes;
  uint32_t group = ~0u;
  Prefetcher prefetcher(scratch.ahead, dim / kTile);
  for (uint32_t first = 0; first < dim; first += kTile) {
    if (first / side.group != group) {
      group = first / side.group;
      const float* s = scales + static_cast<size_t>(group) * side.across;
      const float* z = offsets + static_cast<size_t>(group) * side.across;
      for (uint32_t i = 0; i < count; ++i) {
        const float* w = weights + i * stride;
        F bias = splat(0.0f);
        uint32_t t = 0;
        for (; t + kLanes <= rows; t += kLanes) {
          const F v = load(w + t);
          store(folded + t, mul(v, load(s + t)));
          bias = fma(v, load(z + t), bias);
        }
        float rest = 0.0f;
        for (; t < depth; ++t) {
          folded[t] = t < rows ? w[t] * s[t] : 0.0f;
          rest += t < rows ? w[t] * z[t] : 0.0f;
        }
        int8_t* high = factors + static_cast<size_t>(i) * planes * depth;
        const RoundedRow r = round_factors(folded, depth, planes, high, high + depth);
        steps[i] = r.step * side.unit;
        shifts[i] = sum(bias) + rest + shift_of(side, r);
      }
    }
    prefetcher.step();
    dot.start(codes, first / kTile, depth / 16);
    for (uint32_t i0 = 0; i0 < count; i0 += batch) {
      const uint32_t n = smaller(batch, count - i0);
      dot.run(0, depth / 16, factors + static_cast<size_t>(i0) * planes * depth, depth, n * planes, sums);
      for (uint32_t i = i0; i < i0 + n; ++i) {
        const F step = splat(steps[i]), shift = splat(shifts[i]);
        float* a = acc + static_cast<size_t>(i) * dim + first;
        for (uint32_t l = 0; l < kTile; l += kLanes) {
          store(a + l, add(load(a + l), fma(dot.joined(sums, i - i0, l), step, shift)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace tierkv::quant
