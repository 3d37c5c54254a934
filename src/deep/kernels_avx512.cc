#define TIERKV_DEEP_TILE 32
#include "deep/kernels_body.h"

namespace tierkv::deep {
const Kernels kAvx512Kernels{"avx512", dots, analyse, synthesise};
}  // namespace tierkv::deep
