#include "brief_waits.h"

#include <unistd.h>

#include <cstdlib>

namespace tierkv::cli {
namespace {

// Looks at what is waited for before sleeping, some microseconds. More costs other programs' neighbours dearly, less costs tokens
// where nobody else is (docs/use/embedding.md has the measurements).
constexpr const char* kLooks = "300";

}  // namespace

void start_with_brief_waits(char** arguments) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  if (setenv("GOMP_SPINCOUNT", kLooks, 0) == 0) execv("/proc/self/exe", arguments);
}

}  // namespace tierkv::cli
