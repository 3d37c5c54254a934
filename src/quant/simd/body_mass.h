// body_mass.h — weights of a softmax kept for whoever listens, and their sums over query heads. See body_codes.h.
#pragma once

#include "quant/simd/body_softmax.h"

namespace tierkv::quant {
namespace {

float exp_sum_kept(float* x, uint32_t n, float m, uint16_t* kept) {
  const F shift = splat(m), unit = splat(kKeptUnit);
  F total = splat(0.0f);
  for (uint32_t i = 0; i < n; i += kLanes) {
    const F e = exp_below_zero(sub(load(x + i), shift));
    store(x + i, e);
    store_f16(kept + i, mul(e, unit));
    total = add(total, e);
  }
  return sum(total);
}

// kVectors vectors of tokens: as many sums run at once, and no addition waits for the one before.
template <uint32_t kVectors>
TIERKV_INLINE void sum_kept_tokens(const uint16_t* kept, size_t stride, const float* shares, uint32_t count, F* sums) {
  for (uint32_t i = 0; i < count; ++i) {
    const F share = splat(shares[i]);
    for (uint32_t v = 0; v < kVectors; ++v) sums[v] = fma(load_f16(kept + i * stride + v * kLanes), share, sums[v]);
  }
}

void sum_kept(const uint16_t* kept, size_t stride, const float* shares, uint32_t count, uint32_t n, bool add, float* sums) {
  constexpr uint32_t kVectors = 4;
  uint32_t t = 0;
  for (; t + kVectors * kLanes <= n; t += kVectors * kLanes) {
    F acc[kVectors];
    for (uint32_t v = 0; v < kVectors; ++v) acc[v] = add ? load(sums + t + v * kLanes) : splat(0.0f);
    sum_kept_tokens<kVectors>(kept + t, stride, shares, count, acc);
    for (uint32_t v = 0; v < kVectors; ++v) store(sums + t + v * kLanes, acc[v]);
  }
  for (; t < n; t += kLanes) {  // rows of weights are whole vectors; the sums may end earlier
    F acc = splat(0.0f);
    sum_kept_tokens<1>(kept + t, stride, shares, count, &acc);
    float more[kLanes];
    store(more, acc);
    for (uint32_t l = 0; l < kLanes && t + l < n; ++l) sums[t + l] = more[l] + (add ? sums[t + l] : 0.0f);
  }
}

void fade_add(float* stats, float fade, const float* sums, uint32_t n) {
  const F kept = splat(fade);
  uint32_t t = 0;
  for (; t + kLanes <= n; t += kLanes) store(stats + t, add(mul(load(stats + t), kept), load(sums + t)));
  for (; t < n; ++t) stats[t] = stats[t] * fade + sums[t];
}

}  // namespace
}  // namespace tierkv::quant
