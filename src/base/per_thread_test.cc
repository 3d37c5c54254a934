#include "base/per_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/failing_memory.h"

namespace tierkv {
namespace {

std::atomic<int> alive{0};

struct Counted {
  std::vector<int> values{1, 2, 3};
  Counted() { ++alive; }
  ~Counted() { --alive; }
};
struct Other {
  int x = 7;
};

TEST(PerThread, EveryThreadHasItsOwnAndFreesIt) {
  Counted* mine = &per_thread<Counted>();
  EXPECT_EQ(mine, &per_thread<Counted>());
  EXPECT_EQ(per_thread<Other>().x, 7);
  for (int i = 0; i < 3; ++i) {
    std::thread([&] {
      Counted* theirs = &per_thread<Counted>();
      EXPECT_NE(theirs, mine);
      EXPECT_EQ(theirs, &per_thread<Counted>());
      EXPECT_EQ(per_thread<Other>().x, 7);
      EXPECT_EQ(alive, 2);
    }).join();
    EXPECT_EQ(alive, 1) << "freed with its thread";
  }
}

struct Late {
  std::vector<float> rows = std::vector<float>(100);
};

TEST(PerThread, NoMemoryIsAnExceptionAndTheNextCallTriesAgain) {
  std::thread([] {
    for (long nth = 1; nth <= 2; ++nth) {
      bool thrown = false;
      testing::FailingMemory::arm(nth, testing::FailingMemory::Mode::once);
      try {
        per_thread<Late>();
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
      testing::FailingMemory::disarm();
      EXPECT_TRUE(thrown) << nth;
    }
    EXPECT_EQ(per_thread<Late>().rows.size(), 100u);
  }).join();
}

}  // namespace
}  // namespace tierkv
