#include "quant/grid.h"

#include <algorithm>
#include <cmath>

#include "quant/vec.h"

namespace tierkv::quant {

namespace {

// Adding and subtracting 1.5·2^23 rounds half to even for |x| < 2^22 and, unlike a call to rint, vectorises everywhere.
inline float round_small(float x) { return (x + 12582912.0f) - 12582912.0f; }

void min_max(const float* x, uint32_t n, float& lo, float& hi) {
  lo = hi = x[0];
  for (uint32_t i = 1; i < n; ++i) {
    lo = std::min(lo, x[i]);
    hi = std::max(hi, x[i]);
  }
}

// REQUIRES: n % 4 == 0 (groups come in sixteens).
double squared_error(const float* x, uint32_t n, float scale, float offset, uint32_t levels) {
  const Float4 top = splat4(static_cast<float>(levels - 1)), step = splat4(scale), start = splat4(offset),
               magic = splat4(12582912.0f);
  const Float4 inverse = splat4(1.0f / scale);
  Float4 sum = splat4(0.0f);
  for (uint32_t i = 0; i < n; i += 4) {
    const Float4 v = load4<Float4>(x + i);
    const Float4 code = (min4(max4((v - start) * inverse, splat4(0.0f)), top) + magic) - magic;
    const Float4 e = v - (start + step * code);
    sum += e * e;
  }
  return sum4(sum);
}

GroupFit fit_range(const float* x, uint32_t n) {
  GroupFit fit;
  min_max(x, n, fit.lo, fit.hi);
  return fit;
}

GroupFit fit_range_clip(const float* x, uint32_t n, uint32_t levels) {
  GroupFit best = fit_range(x, n);
  const double middle = 0.5 * (static_cast<double>(best.lo) + best.hi), half = 0.5 * (static_cast<double>(best.hi) - best.lo);
  const float intervals = static_cast<float>(levels - 1);
  if (!(half / intervals > 1e-30)) return best;  // constant, or too small for 1/scale
  double least = squared_error(x, n, static_cast<float>(2.0 * half / intervals), best.lo, levels);
  for (int i = 19; i >= 5; --i) {
    const double f = i / 20.0;
    const float lo = static_cast<float>(middle - f * half), hi = static_cast<float>(middle + f * half);
    const double e = squared_error(x, n, (hi - lo) / intervals, lo, levels);
    if (e < least) {
      least = e;
      best.lo = lo;
      best.hi = hi;
    }
  }
  return best;
}

float largest_magnitude(const float* x, uint32_t n) {
  float a = 0.0f;
  for (uint32_t i = 0; i < n; ++i) a = std::max(a, std::fabs(x[i]));
  return a;
}

GroupFit fit_absmax(const float* x, uint32_t n, uint32_t levels) {
  GroupFit fit;
  fit.scale = largest_magnitude(x, n) / static_cast<float>(levels / 2 - 1);
  return fit;
}

// As document 001 has it, except that a constant group keeps its value (there: scale 1, zero point 0, which rounds 0.42 to 0).
GroupFit fit_asymmetric(const float* x, uint32_t n, uint32_t levels) {
  GroupFit fit = fit_range(x, n);
  const float range = fit.hi - fit.lo;
  if (range < 1.1920929e-7f) {
    fit.scale = 1.0f;
    fit.zero = -fit.lo;
  } else {
    fit.scale = range / static_cast<float>(levels - 1);
    fit.zero = -fit.lo / fit.scale;
  }
  return fit;
}

GroupFit fit_symmetric(const float* x, uint32_t n, uint32_t levels) {
  GroupFit fit;
  const float a = largest_magnitude(x, n);
  fit.scale = a < 1.1920929e-7f ? 1.0f : a / static_cast<float>(levels / 2 - 1);
  return fit;
}

double rms_of(const float* x, uint32_t n) {
  double sum = 0.0;
  for (uint32_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return std::sqrt(sum / n);
}

GroupFit fit_midrise(const float* x, uint32_t n, uint32_t levels) {
  GroupFit fit;
  const float a = largest_magnitude(x, n);
  const double rms = rms_of(x, n);
  if (!(rms > 1e-30)) return fit;
  // Candidates: no clipping at all, and eighths of an octave from 0.6 to 2.8 times a step near the optimum for a Gaussian group
  // (4·levels^-0.9 is within 15 % of it from 2 to 8 bits).
  const float zero = 0.5f * static_cast<float>(levels - 1);
  fit.step = 2.0f * a / static_cast<float>(levels);
  double least = squared_error(x, n, fit.step, -zero * fit.step, levels);
  const double centre = rms * 4.0 * std::pow(static_cast<double>(levels), -0.9);
  for (int i = -6; i <= 12; ++i) {
    const float step = static_cast<float>(centre * std::exp2(i / 8.0));
    if (step >= 2.0f * a) break;
    const double e = squared_error(x, n, step, -zero * step, levels);
    if (e < least) {
      least = e;
      fit.step = step;
    }
  }
  // The codes point where x points, so <x, c> > 0; this scale makes the projection of x' on x exactly x, which keeps
  // large scores from shrinking.
  double xx = 0.0, xc = 0.0;
  const float top = static_cast<float>(levels - 1);
  for (uint32_t i = 0; i < n; ++i) {
    const float code = round_small(std::min(std::max((x[i] + zero * fit.step) / fit.step, 0.0f), top));
    xx += static_cast<double>(x[i]) * x[i];
    xc += static_cast<double>(x[i]) * (code - zero);
  }
  fit.scale = xc > 0.0 ? static_cast<float>(xx / xc) : fit.step;
  return fit;
}

}  // namespace

GroupFit fit_group(FitKind kind, const float* x, uint32_t n, uint32_t levels) {
  switch (kind) {
    case FitKind::range: return fit_range(x, n);
    case FitKind::range_clip: return fit_range_clip(x, n, levels);
    case FitKind::absmax: return fit_absmax(x, n, levels);
    case FitKind::asymmetric: return fit_asymmetric(x, n, levels);
    case FitKind::symmetric: return fit_symmetric(x, n, levels);
    case FitKind::midrise: return fit_midrise(x, n, levels);
    case FitKind::rms: break;
  }
  GroupFit fit;
  fit.scale = static_cast<float>(rms_of(x, n));
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
