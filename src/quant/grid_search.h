// grid_search.h — constants of the step searches, shared by grid.cc and the kernels so that both give the same bits.
//
// Both searches are coarse to fine: every third point of a grid of steps, then the two neighbours of the best. Against trying every
// point (docs/codec_error.md) the error of a group changes by less than its measuring noise, at half the work.
#pragma once

namespace tierkv::quant {

// midrise: 2^(i/8), i = -6, -3, ... 12, times a step near the optimum for a Gaussian group; then an eighth of an octave down and up.
inline constexpr float kMidriseCoarse[7] = {0.594603558f, 0.771105413f, 1.0f, 1.29683955f, 1.68179283f, 2.18101547f, 2.82842712f};
inline constexpr float kMidriseDown = 0.917004043f, kMidriseUp = 1.09050773f;

// clip: parts of the range that are kept; then a twentieth less and more.
inline constexpr float kClipCoarse[5] = {0.85f, 0.7f, 0.55f, 0.4f, 0.25f};
inline constexpr float kClipFine = 0.05f, kClipLeast = 0.25f;

// Groups below this are zero, and ranges below it are not searched: 1/step must exist.
inline constexpr float kTinyGroup = 1e-30f;

}  // namespace tierkv::quant
