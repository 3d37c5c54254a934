// body_softmax.h — the largest of a row of scores, their exponentials and sums. See body_codes.h.
#pragma once

#include "quant/simd/body_codes.h"

namespace tierkv::quant {
namespace {

float largest(const float* x, uint32_t n) {
  F most = load(x);
  for (uint32_t i = kLanes; i < n; i += kLanes) most = max(most, load(x + i));
  return top(most);
}

// e^x for x <= 0, relative error below 3e-7; 0 from -87 on, where the true value leaves the range of normal floats.
TIERKV_INLINE F exp_below_zero(F x) {
  const F clamped = max(x, splat(-87.0f));
  const I n = to_words(mul(clamped, splat(1.44269504f)));
  const F k = to_floats(n);
  F r = fma(k, splat(-0.693359375f), clamped);
  r = fma(k, splat(2.12194440e-4f), r);
  F p = splat(1.3981999507e-3f);
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(mul(p, r), r, add(r, splat(1.0f)));
  const F scaled = as_floats(add_words(as_words(p), left<23>(n)));
  return keep_above(scaled, x, -87.0f);
}

float exp_sum(float* x, uint32_t n, float m) {
  const F shift = splat(m);
  F total = splat(0.0f);
  for (uint32_t i = 0; i < n; i += kLanes) {
    const F e = exp_below_zero(sub(load(x + i), shift));
    store(x + i, e);
    total = add(total, e);
  }
  return sum(total);
}

float dot(const float* a, const float* b, uint32_t n) {
  F total = splat(0.0f);
  for (uint32_t i = 0; i < n; i += kLanes) total = fma(load(a + i), load(b + i), total);
  return sum(total);
}

}  // namespace
}  // namespace tierkv::quant
