// Built for AVX-512 F, BW, DQ, VL and VNNI: see kernels.h.
#define TIERKV_SIMD_VNNI
#include "quant/simd/avx512.h"

#include "quant/simd/body_rows.h"

namespace tierkv::quant {

extern const Kernels kAvx512VnniKernels;
const Kernels kAvx512VnniKernels = make_kernels("avx512vnni");

}  // namespace tierkv::quant
