#include "base/modest_thread.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

namespace tierkv {
namespace {

int niceness_here() { return getpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid))); }

bool blocks_interrupts() {
  sigset_t now;
  sigemptyset(&now);
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  return sigismember(&now, SIGINT) == 1;
}

TEST(ModestThread, ChangesTheCallingThreadAlone) {
  const int before = niceness_here();
  int inside = -100;
  bool blocked = false;
  std::thread([&] {
    be_modest(19);
    inside = niceness_here();
    blocked = blocks_interrupts();
  }).join();
  EXPECT_EQ(inside, 19);
  EXPECT_TRUE(blocked);
  EXPECT_EQ(niceness_here(), before);
  EXPECT_FALSE(blocks_interrupts());
}

}  // namespace
}  // namespace tierkv
