// Built for AArch64 with the dot product extension: see kernels.h.
#define TIERKV_SIMD_DOTPROD
#include "quant/simd/neon.h"

#include "quant/simd/body_rows.h"

namespace tierkv::quant {

extern const Kernels kNeonDotprodKernels;
const Kernels kNeonDotprodKernels = make_kernels("neon_dotprod");

}  // namespace tierkv::quant
