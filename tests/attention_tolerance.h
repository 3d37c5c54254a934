// attention_tolerance.h — how far attention may be from double precision: plain C++ sums in floats, the kernels round queries and weights to
// 16 bits on their way into integer products (src/quant/kernels.h).
#pragma once

#include "quant/isa.h"

namespace tierkv::testing {

inline double attention_tolerance() { return quant::active_kernels() ? 1e-3 : 1e-4; }

}  // namespace tierkv::testing
