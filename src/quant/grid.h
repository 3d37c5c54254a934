// grid.h — fitting a grid to one group of values, and rounding the group onto it.
//
// Every grid here is x' = offset + scale·code with code in 0..levels-1. A fit says what it wants; meta.h rounds the wish to what
// can be stored and the codes are then taken against the stored grid (or, for an unbiased grid, against the one of the fit).
// Groups have at least one value. Non-finite input is the caller's to refuse. Sums run in the order of the group, in float (squares
// in a unit of the group's own, so that they neither overflow nor vanish): the kernels (simd/body_fit.h) do the same in every
// lane and give the same bits.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tierkv::quant {

// What a group asks for. Pairs (scale and minimum) use lo and hi, grids tied to their scale only `scale`; the reference
// quantizers store `zero` as well. `step` is what the codes are taken with where that is not the stored scale.
struct GroupFit {
  float lo = 0, hi = 0;
  float scale = 0, zero = 0;
  float step = 0;
};

enum class FitKind : uint8_t {
  range,       // the group's minimum and maximum
  range_clip,  // the same, shrunk around its middle by the factor that minimises the squared error
  absmax,      // scale = largest magnitude over (levels/2 - 1), codes offset by levels/2
  asymmetric,  // ruvector-attention: scale and zero point, value = scale·(code - zero)
  symmetric,   // ruvector-attention: scale, offset levels/2
  midrise,     // levels at odd half steps, step by squared-error search, scale refit so that <x', x> = <x, x>
  rms,         // root mean square, for a codebook of the unit normal
};

GroupFit fit_group(FitKind kind, const float* x, uint32_t n, uint32_t levels);

// Where the search of FitKind::midrise starts, in units of the root mean square.
float midrise_centre(uint32_t levels);

// The rest of a fit whose minimum and maximum (and, where the kind has them, scale and step) are in place.
void finish_fit(FitKind kind, uint32_t levels, GroupFit& fit);

// Adding and subtracting 1.5·2^23 rounds half to even for |x| < 2^22 and, unlike a call to rint, vectorises everywhere.
inline constexpr float kMagic = 12582912.0f;
inline float round_small(float x) { return (x + kMagic) - kMagic; }

// The code of x as a float: round((x - offset)/scale) half to even, clamped to 0..levels-1; 0 when scale is zero.
inline float nearest_level(float x, float scale, float offset, uint32_t levels) {
  if (!(scale > 0.0f)) return 0.0f;
  return round_small(std::min(std::max((x - offset) / scale, 0.0f), static_cast<float>(levels - 1)));
}

// codes[i] = round((x[i] - offset)/scale) half to even, clamped to 0..levels-1; all zero when scale is zero.
void code_group(const float* x, uint32_t n, float scale, float offset, uint32_t levels, uint16_t* codes);

// codes[i] = index of the nearest of `levels` ascending values of scale·table.
void code_group_table(const float* x, uint32_t n, float scale, const float* table, uint32_t levels, uint16_t* codes);

}  // namespace tierkv::quant
