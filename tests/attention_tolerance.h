// attention_tolerance.h — how far attention may be from double precision: plain C++ sums in floats, the kernels round queries and
// weights to 16 bits on their way into integer products (src/quant/kernels.h). Tests that use this run twice, with the kernels and
// with TIERKV_FORCE_ISA=scalar, where attention must be right to 1e-4.
#pragma once

#include "quant/isa.h"

namespace tierkv::testing {

inline double attention_tolerance() { return quant::active_kernels() ? 1e-3 : 1e-4; }

}  // namespace tierkv::testing
