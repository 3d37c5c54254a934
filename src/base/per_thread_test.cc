#include "base/per_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace tierkv {
namespace {

std::atomic<int> alive{0};
std::atomic<bool> refuse{false};

struct Counted {
  int value = 0;
  Counted() {
    if (refuse) throw std::bad_alloc();
    ++alive;
  }
  ~Counted() { --alive; }
};

TEST(PerThread, EveryThreadHasItsOwnUntilItEnds) {
  PerThread<Counted>::get().value = 7;
  std::thread([] {
    EXPECT_EQ(PerThread<Counted>::get().value, 0);
    PerThread<Counted>::get().value = 9;
    EXPECT_EQ(PerThread<Counted>::get().value, 9);
    EXPECT_EQ(alive, 2);
  }).join();
  EXPECT_EQ(alive, 1);
  EXPECT_EQ(PerThread<Counted>::get().value, 7);
}

TEST(PerThread, WantOfMemoryIsAnExceptionAndTheNextCallTriesAgain) {
  std::thread([] {
    refuse = true;
    EXPECT_THROW(PerThread<Counted>::get(), std::bad_alloc);
    refuse = false;
    EXPECT_EQ(PerThread<Counted>::get().value, 0);
  }).join();
}

}  // namespace
}  // namespace tierkv
