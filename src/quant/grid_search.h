// grid_search.h — constants of the step searches, shared by grid.cc and the kernels so that both give the same bits.
//
// Every candidate is tried: from four bits on the error has more than one valley, and a search that skips ends in the wrong one.
#pragma once

#include <cstdint>

namespace tierkv::quant {

// midrise: 2^(i/8), i = -6 .. 12, times a step near the optimum for a Gaussian group.
inline constexpr uint32_t kMidriseSteps = 19;
inline constexpr float kMidriseRatios[kMidriseSteps] = {0.594603558f, 0.648419777f, 0.707106781f, 0.771105413f, 0.840896415f,
                                                        0.917004043f, 1.0f,         1.09050773f,  1.18920712f,  1.29683955f,
                                                        1.41421356f,  1.54221083f,  1.68179283f,  1.83400809f,  2.0f,
                                                        2.18101547f,  2.37841423f,  2.59367911f,  2.82842712f};

// clip: parts of the range that are kept beside the whole.
inline constexpr uint32_t kClipSteps = 15;
inline constexpr float kClipParts[kClipSteps] = {0.95f, 0.9f, 0.85f, 0.8f, 0.75f, 0.7f, 0.65f, 0.6f,
                                                 0.55f, 0.5f, 0.45f, 0.4f, 0.35f, 0.3f, 0.25f};

// Groups below this are zero, and ranges below it are not searched: 1/step must exist.
inline constexpr float kTinyGroup = 1e-30f;

}  // namespace tierkv::quant
