#include "quant/grid.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "quant/grid_search.h"
#include "quant/vec.h"

namespace tierkv::quant {

namespace {

void find_range(const float* x, uint32_t n, GroupFit& fit) {
  float lo = x[0], hi = x[0];
  for (uint32_t i = 1; i < n; ++i) {
    lo = std::min(lo, x[i]);
    hi = std::max(hi, x[i]);
  }
  fit.lo = lo + 0.0f;  // no negative zeros: whether they are below zero is a matter of the instruction set
  fit.hi = hi + 0.0f;
}

float largest_magnitude(const GroupFit& fit) { return std::max(std::fabs(fit.lo), std::fabs(fit.hi)); }

// The power of two at the largest magnitude of a group, and its inverse: squares of what it scales stay inside float.
struct Unit {
  float most, up, down;
};
Unit unit_of(const GroupFit& fit) {
  const float most = std::max(largest_magnitude(fit), kTinyGroup);
  const uint32_t exponent = std::bit_cast<uint32_t>(most) & 0x7F800000u;
  return {most, std::bit_cast<float>(exponent), std::bit_cast<float>(0x7F000000u - exponent)};
}

float sum_of_squares(const float* x, uint32_t n, float down) {
  float sum = 0.0f;
  for (uint32_t i = 0; i < n; ++i) {
    const float v = x[i] * down;
    sum += v * v;
  }
  return sum;
}

// |x| = step·(u + 1/2) lies nearest to step·(code + 1/2) for this code, the outermost being `outer`.
inline float midrise_code(float u, float outer) { return round_small(std::min(u, outer)); }

// Four steps side by side, from the first to the last.
void try_midrise(const float* x, uint32_t n, float down, float outer, const float* steps, float& least, float& best) {
  const Float4 step = load4<Float4>(steps), inverse = splat4(1.0f) / step, last = splat4(outer), half = splat4(0.5f);
  const Float4 magic = splat4(kMagic);
  Float4 sums = splat4(0.0f);
  for (uint32_t i = 0; i < n; ++i) {
    const Float4 u = splat4(std::fabs(x[i] * down)) * inverse - half;
    const Float4 e = u - ((min4(u, last) + magic) - magic);
    sums += e * e;
  }
  const Float4 errors = step * step * sums;
  for (uint32_t k = 0; k < 4; ++k) {
    if (!(errors[k] < least)) continue;
    least = errors[k];
    best = steps[k];
  }
}

void fit_midrise(const float* x, uint32_t n, uint32_t levels, GroupFit& fit) {
  const Unit unit = unit_of(fit);
  if (!(unit.most > kTinyGroup)) return;
  const float squares = sum_of_squares(x, n, unit.down);
  const float middle = std::sqrt(squares / static_cast<float>(n)) * midrise_centre(levels);
  const float widest = 2.0f * (unit.most * unit.down), outer = static_cast<float>(levels / 2 - 1);
  // Candidates: no clipping at all, and eighths of an octave from 0.6 to 2.8 times a step near the optimum for a Gaussian group.
  float steps[kMidriseSteps + 1] = {widest / static_cast<float>(levels)}, least = 3.0e38f, best = widest;
  for (uint32_t k = 0; k < kMidriseSteps; ++k) steps[k + 1] = std::min(middle * kMidriseRatios[k], widest);
  for (uint32_t k = 0; k <= kMidriseSteps; k += 4) try_midrise(x, n, unit.down, outer, steps + k, least, best);
  // The codes point where x points, so their product is above zero; this scale makes the projection of x' on x exactly x, which
  // keeps large scores from shrinking.
  const float inverse = 1.0f / best;
  float product = 0.0f;
  for (uint32_t i = 0; i < n; ++i) {
    const float v = std::fabs(x[i] * unit.down);
    product += v * (midrise_code(v * inverse - 0.5f, outer) + 0.5f);
  }
  fit.step = best * unit.up;
  fit.scale = squares / product * unit.up;
}

struct ClipSearch {
  float middle, half, top;
  float least = 3.0e38f, best = 1.0f;  // best: the part of the range that is kept
};

void try_clip(const float* x, uint32_t n, const float* parts, ClipSearch& s) {
  const Float4 reach = load4<Float4>(parts) * splat4(s.half), middle = splat4(s.middle), top = splat4(s.top);
  const Float4 magic = splat4(kMagic);
  const Float4 low = middle - reach, step = (middle + reach - low) / top, inverse = splat4(1.0f) / step, zero = splat4(0.0f);
  Float4 sums = zero;
  for (uint32_t i = 0; i < n; ++i) {
    const Float4 u = (splat4(x[i]) - low) * inverse;
    const Float4 e = u - ((min4(max4(u, zero), top) + magic) - magic);
    sums += e * e;
  }
  const Float4 errors = step * step * sums;
  for (uint32_t k = 0; k < 4; ++k) {
    if (!(errors[k] < s.least)) continue;
    s.least = errors[k];
    s.best = parts[k];
  }
}

void fit_clip(const float* x, uint32_t n, uint32_t levels, GroupFit& fit) {
  ClipSearch s;
  s.middle = 0.5f * fit.lo + 0.5f * fit.hi;
  s.half = 0.5f * fit.hi - 0.5f * fit.lo;
  s.top = static_cast<float>(levels - 1);
  if (!(s.half / s.top > kTinyGroup)) return;  // constant, or too small for 1/scale
  float parts[kClipSteps + 1] = {1.0f};
  std::copy(std::begin(kClipParts), std::end(kClipParts), parts + 1);
  for (uint32_t k = 0; k <= kClipSteps; k += 4) try_clip(x, n, parts + k, s);
  if (!(s.best < 1.0f)) return;
  const float reach = s.best * s.half;
  fit.lo = s.middle - reach;
  fit.hi = s.middle + reach;
}

// As ruvector-attention has it, except that a constant group keeps its value (there: scale 1, zero point 0, which rounds 0.42 to
// 0).
void finish_asymmetric(uint32_t levels, GroupFit& fit) {
  const float range = fit.hi - fit.lo;
  if (range < 1.1920929e-7f) {
    fit.scale = 1.0f;
    fit.zero = -fit.lo;
  } else {
    fit.scale = range / static_cast<float>(levels - 1);
    fit.zero = -fit.lo / fit.scale;
  }
}

}  // namespace

// 4·levels^-0.9 is within 15 % of the optimum for a Gaussian group from 2 to 8 bits.
float midrise_centre(uint32_t levels) { return static_cast<float>(4.0 * std::pow(static_cast<double>(levels), -0.9)); }

void finish_fit(FitKind kind, uint32_t levels, GroupFit& fit) {
  const float steps = static_cast<float>(levels / 2 - 1);
  switch (kind) {
    case FitKind::absmax: fit.scale = largest_magnitude(fit) / steps; return;
    case FitKind::asymmetric: return finish_asymmetric(levels, fit);
    case FitKind::symmetric: {
      const float most = largest_magnitude(fit);
      fit.scale = most < 1.1920929e-7f ? 1.0f : most / steps;
      return;
    }
    case FitKind::range:
    case FitKind::range_clip:
    case FitKind::midrise:
    case FitKind::rms: return;
  }
}

GroupFit fit_group(FitKind kind, const float* x, uint32_t n, uint32_t levels) {
  GroupFit fit;
  find_range(x, n, fit);
  if (kind == FitKind::range_clip) fit_clip(x, n, levels, fit);
  if (kind == FitKind::midrise) fit_midrise(x, n, levels, fit);
  if (kind == FitKind::rms) {
    const Unit unit = unit_of(fit);
    fit.scale = std::sqrt(sum_of_squares(x, n, unit.down) / static_cast<float>(n)) * unit.up;
  }
  finish_fit(kind, levels, fit);
  return fit;
}

void code_group(const float* x, uint32_t n, float scale, float offset, uint32_t levels, uint16_t* codes) {
  const float top = static_cast<float>(levels - 1);
  if (!(scale > 0.0f)) {
    std::fill(codes, codes + n, uint16_t{0});
    return;
  }
  for (uint32_t i = 0; i < n; ++i) {
    const float code = round_small(std::min(std::max((x[i] - offset) / scale, 0.0f), top));
    codes[i] = static_cast<uint16_t>(static_cast<int32_t>(code));
  }
}

void code_group_table(const float* x, uint32_t n, float scale, const float* table, uint32_t levels, uint16_t* codes) {
  for (uint32_t i = 0; i < n; ++i) {
    uint16_t code = 0;
    for (uint32_t k = 1; k < levels; ++k)
      code = static_cast<uint16_t>(code + (x[i] > 0.5f * scale * (table[k - 1] + table[k]) ? 1 : 0));
    codes[i] = code;
  }
}

}  // namespace tierkv::quant
