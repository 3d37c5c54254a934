// Built for AVX-512 F, BW, DQ and VL, without VNNI alone: see kernels.h.
#include "quant/simd/avx512.h"

#include "quant/simd/body_rows.h"

namespace tierkv::quant {

extern const Kernels kAvx512Kernels;
const Kernels kAvx512Kernels = make_kernels("avx512");

}  // namespace tierkv::quant
