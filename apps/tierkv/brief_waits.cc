#include "brief_waits.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "engine/thread_count.h"

namespace tierkv::cli {
namespace {

// Looks at what is waited for before sleeping: some microseconds. docs/use/embedding.md has what it was chosen on.
constexpr const char* kLooks = "300";
constexpr int kSamples = 3;  // a moment's work of the system is nobody's program

bool others_compute() {
  const uint32_t cores = engine::free_cores(UINT32_MAX);  // as if all that runs were ours: every core
  for (int i = 0; i < kSamples; ++i) {
    if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (engine::free_cores(1) >= cores) return false;
  }
  return true;
}

}  // namespace

void wait_briefly_beside_others(char** arguments) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  if (!others_compute()) return;
  if (setenv("GOMP_SPINCOUNT", kLooks, 0) == 0) execv("/proc/self/exe", arguments);
}

}  // namespace tierkv::cli
