// Built for AVX2, FMA and F16C alone: see kernels.h.
#include "quant/simd/avx2.h"

#include "quant/simd/body_rows.h"

namespace tierkv::quant {

extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = make_kernels("avx2");

}  // namespace tierkv::quant
