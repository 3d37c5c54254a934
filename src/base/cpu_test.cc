#include "base/cpu.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace tierkv {
namespace {

TEST(Cpu, WiderSetsIncludeTheNarrowerOnes) {
  const CpuFeatures& f = cpu_features();
  EXPECT_TRUE(!f.avx512 || f.avx2);
  EXPECT_TRUE(!f.avx512vnni || f.avx512);
  EXPECT_TRUE(!f.neon_dotprod || f.neon);
  EXPECT_FALSE(f.avx2 && f.neon);
}

// The kernel's own list, where there is one.
TEST(Cpu, AgreesWithTheSystem) {
  std::ifstream file("/proc/cpuinfo");
  std::string line, flags;
  while (std::getline(file, line)) {
    if (line.starts_with("flags")) {
      flags = line + " ";
      break;
    }
  }
  if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo has no flags";
  const auto has = [&](const char* name) { return flags.find(" " + std::string(name) + " ") != std::string::npos; };
  const bool avx2 = has("avx2") && has("fma") && has("f16c");
  const bool avx512 = avx2 && has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl");
  EXPECT_EQ(cpu_features().avx2, avx2);
  EXPECT_EQ(cpu_features().avx512, avx512);
  EXPECT_EQ(cpu_features().avx512vnni, avx512 && has("avx512_vnni"));
}

TEST(Cpu, TheEnvironmentIsReadOnce) {
  const std::string before(forced_isa());
  ASSERT_EQ(::setenv("TIERKV_FORCE_ISA", "something else", 1), 0);
  EXPECT_EQ(forced_isa(), before);
}

}  // namespace
}  // namespace tierkv
