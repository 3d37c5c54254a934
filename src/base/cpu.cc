#include "base/cpu.h"

#include <cstdlib>
#include <string>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace tierkv {
namespace {

CpuFeatures find_features() {
  CpuFeatures f;
#if defined(__x86_64__)
  __builtin_cpu_init();
  f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  f.avx512 = f.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  f.avx512vnni = f.avx512 && __builtin_cpu_supports("avx512vnni");
#elif defined(__aarch64__)
  f.neon = true;
#if defined(__linux__)
  constexpr unsigned long kDotProduct = 1ul << 20;  // HWCAP_ASIMDDP
  f.neon_dotprod = (getauxval(AT_HWCAP) & kDotProduct) != 0;
#elif defined(__ARM_FEATURE_DOTPROD)
  f.neon_dotprod = true;  // the whole build is for processors that have it
#endif
#endif
  return f;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = find_features();
  return features;
}

std::string_view forced_isa() {
  static const std::string name = [] {
    const char* text = std::getenv("TIERKV_FORCE_ISA");
    return std::string(text ? text : "");
  }();
  return name;
}

}  // namespace tierkv
