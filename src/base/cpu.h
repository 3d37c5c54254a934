// cpu.h — what this processor can run, and what the environment asks for: the one place that looks.
//
// A feature here is the group of instructions that one file of kernels is compiled with (cmake/TierkvKernels.cmake): all of the
// group or nothing. Whether kernels for it exist in this build, and do what they should, is their own rooms' affair.
// Threads:  any; found once.
#pragma once

#include <string_view>

namespace tierkv {

struct CpuFeatures {
  bool avx2 = false;        // with FMA and F16C
  bool avx512 = false;      // F, BW, DQ and VL, beside avx2
  bool avx512vnni = false;  // beside avx512
  bool neon = false;
  bool neon_dotprod = false;  // beside neon
};

const CpuFeatures& cpu_features();

// TIERKV_FORCE_ISA as it was when somebody first asked; empty when it is not set.
std::string_view forced_isa();

}  // namespace tierkv
