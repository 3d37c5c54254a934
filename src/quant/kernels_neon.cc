// Built for plain AArch64: see kernels.h.
#include "quant/simd/neon.h"

#include "quant/simd/body_rows.h"

namespace tierkv::quant {

extern const Kernels kNeonKernels;
const Kernels kNeonKernels = make_kernels("neon");

}  // namespace tierkv::quant
