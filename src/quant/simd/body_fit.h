// body_fit.h — scales and offsets of groups, one group a lane. See body_codes.h.
//
// Every result has the bits of the scalar code (grid.cc, lanes.cc, frame.cc): groups lie one a lane, so that the sums of a group
// run in its own order whatever the width of a register, and nothing that rounds is fused.
#pragma once

#include "quant/grid_search.h"
#include "quant/simd/body_codes.h"

namespace tierkv::quant {
namespace {

struct Range {
  F lo, hi;
};
TIERKV_INLINE Range lane_range(const float* x, size_t stride, uint32_t n) {
  F lo = load(x), hi = lo;
  for (uint32_t i = 1; i < n; ++i) {
    const F v = load(x + i * stride);
    lo = min(v, lo);
    hi = max(v, hi);
  }
  const F zero = splat(0.0f);  // no negative zeros: whether they are below zero is a matter of the instruction set
  return {add(lo, zero), add(hi, zero)};
}

// What a group is multiplied by so that squares of its values stay inside float: the power of two at its largest magnitude.
struct Unit {
  F most, up, down;
};
TIERKV_INLINE Unit lane_unit(const Range& range) {
  const F most = max(max(abs(range.lo), abs(range.hi)), splat(kTinyGroup));
  const I exponent = bit_and(as_words(most), splat_word(0x7F800000));
  return {most, as_floats(exponent), as_floats(sub_words(splat_word(0x7F000000), exponent))};
}

TIERKV_INLINE F lane_squares(const float* x, size_t stride, uint32_t n, F down) {
  F sum = splat(0.0f);
  for (uint32_t i = 0; i < n; ++i) {
    const F v = mul(load(x + i * stride), down);
    sum = add(sum, mul(v, v));
  }
  return sum;
}

// Squared errors of kCount midrise steps on x·down, and which is the least.
template <uint32_t kCount>
TIERKV_INLINE void try_midrise(const float* x, size_t stride, uint32_t n, F down, float outer, const F* steps, F& least, F& best) {
  F inverse[kCount], sums[kCount];
  const F half = splat(0.5f), last = splat(outer);
  for (uint32_t k = 0; k < kCount; ++k) {
    inverse[k] = div(splat(1.0f), steps[k]);
    sums[k] = splat(0.0f);
  }
  for (uint32_t i = 0; i < n; ++i) {
    const F v = abs(mul(load(x + i * stride), down));
    for (uint32_t k = 0; k < kCount; ++k) {
      const F u = sub(mul(v, inverse[k]), half);
      const F e = sub(u, nearest(min(u, last)));
      sums[k] = add(sums[k], mul(e, e));
    }
  }
  for (uint32_t k = 0; k < kCount; ++k) {
    const F e = mul(mul(steps[k], steps[k]), sums[k]);
    best = pick_less(e, least, steps[k], best);
    least = pick_less(e, least, e, least);
  }
}

TIERKV_INLINE void lane_midrise(const float* x, size_t stride, uint32_t n, uint32_t levels, float centre, const Range& range,
                                float* scale, float* step) {
  const Unit unit = lane_unit(range);
  const F squares = lane_squares(x, stride, n, unit.down);
  const F middle = mul(sqrt(div(squares, splat(static_cast<float>(n)))), splat(centre));
  const F widest = mul(splat(2.0f), mul(unit.most, unit.down));
  const float outer = static_cast<float>(levels / 2 - 1);
  F steps[kMidriseSteps + 1], least = splat(3.0e38f), best = widest;
  steps[0] = div(widest, splat(static_cast<float>(levels)));
  for (uint32_t k = 0; k < kMidriseSteps; ++k) steps[k + 1] = min(mul(middle, splat(kMidriseRatios[k])), widest);
  for (uint32_t k = 0; k <= kMidriseSteps; k += 4) try_midrise<4>(x, stride, n, unit.down, outer, steps + k, least, best);

  const F inverse = div(splat(1.0f), best), half = splat(0.5f), last = splat(outer);
  F product = splat(0.0f);
  for (uint32_t i = 0; i < n; ++i) {
    const F v = abs(mul(load(x + i * stride), unit.down));
    product = add(product, mul(v, add(nearest(min(sub(mul(v, inverse), half), last)), half)));
  }
  const F none = splat(0.0f), tiny = splat(kTinyGroup);
  store(step, pick_less(tiny, unit.most, mul(best, unit.up), none));
  store(scale, pick_less(tiny, unit.most, mul(div(squares, product), unit.up), none));
}

struct ClipSearch {
  F middle, half, intervals, top;
  F least, best;  // best: the part of the range that is kept
};

template <uint32_t kCount>
TIERKV_INLINE void try_clip(const float* x, size_t stride, uint32_t n, const F* parts, ClipSearch& s) {
  F low[kCount], steps[kCount], inverse[kCount], sums[kCount];
  for (uint32_t k = 0; k < kCount; ++k) {
    const F reach = mul(parts[k], s.half);
    low[k] = sub(s.middle, reach);
    steps[k] = div(sub(add(s.middle, reach), low[k]), s.intervals);
    inverse[k] = div(splat(1.0f), steps[k]);
    sums[k] = splat(0.0f);
  }
  const F zero = splat(0.0f);
  for (uint32_t i = 0; i < n; ++i) {
    const F v = load(x + i * stride);
    for (uint32_t k = 0; k < kCount; ++k) {
      const F u = mul(sub(v, low[k]), inverse[k]);
      const F e = sub(u, nearest(min(max(u, zero), s.top)));
      sums[k] = add(sums[k], mul(e, e));
    }
  }
  for (uint32_t k = 0; k < kCount; ++k) {
    const F e = mul(mul(steps[k], steps[k]), sums[k]);
    s.best = pick_less(e, s.least, parts[k], s.best);
    s.least = pick_less(e, s.least, e, s.least);
  }
}

TIERKV_INLINE Range lane_clip(const float* x, size_t stride, uint32_t n, uint32_t levels, const Range& range) {
  ClipSearch s;
  const F one = splat(1.0f), halves = splat(0.5f);
  s.middle = add(mul(halves, range.lo), mul(halves, range.hi));
  s.half = sub(mul(halves, range.hi), mul(halves, range.lo));
  s.intervals = s.top = splat(static_cast<float>(levels - 1));
  s.least = splat(3.0e38f);
  s.best = one;
  F parts[kClipSteps + 1] = {one};
  for (uint32_t k = 0; k < kClipSteps; ++k) parts[k + 1] = splat(kClipParts[k]);
  for (uint32_t k = 0; k <= kClipSteps; k += 4) try_clip<4>(x, stride, n, parts + k, s);
  const F reach = mul(s.best, s.half), tiny = splat(kTinyGroup), room = div(s.half, s.intervals);
  // The whole range is the group's own minimum and maximum to the bit.
  const F lo = pick_less(s.best, one, sub(s.middle, reach), range.lo), hi = pick_less(s.best, one, add(s.middle, reach), range.hi);
  return {pick_less(tiny, room, lo, range.lo), pick_less(tiny, room, hi, range.hi)};
}

void fit_lanes(FitKind kind, const float* x, size_t stride, uint32_t n, uint32_t levels, float centre, LaneFits& fits) {
  for (uint32_t l = 0; l < kTile; l += kLanes) {
    Range range = lane_range(x + l, stride, n);
    if (kind == FitKind::range_clip) range = lane_clip(x + l, stride, n, levels, range);
    if (kind == FitKind::midrise) lane_midrise(x + l, stride, n, levels, centre, range, fits.scale + l, fits.step + l);
    if (kind == FitKind::rms) {
      const Unit unit = lane_unit(range);
      const F mean = div(lane_squares(x + l, stride, n, unit.down), splat(static_cast<float>(n)));
      store(fits.scale + l, mul(sqrt(mean), unit.up));
    }
    store(fits.lo + l, range.lo);
    store(fits.hi + l, range.hi);
  }
}

void transpose_tile(const float* rows, size_t stride, uint32_t n, float* tile) {
  for (uint32_t c = 0; c < n; c += kLanes) {
    for (uint32_t r = 0; r < kTile; r += kLanes) {
      F v[kLanes];
      for (uint32_t k = 0; k < kLanes; ++k) v[k] = load(rows + (r + k) * stride + c);
      transpose(v);
      for (uint32_t k = 0; k < kLanes; ++k) store(tile + static_cast<size_t>(c + k) * kTile + r, v[k]);
    }
  }
}

}  // namespace
}  // namespace tierkv::quant
