#define TIERKV_DEEP_TILE 16
#include "deep/kernels_body.h"

namespace tierkv::deep {
const Kernels kAvx2Kernels{"avx2", dots, analyse, synthesise};
}  // namespace tierkv::deep
