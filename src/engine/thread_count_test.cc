#include "engine/thread_count.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tierkv::engine {
namespace {

// A machine in figures: what a step takes with some threads, and what it got of the cores.
struct Machine {
  double alone_s = 0.020;  // with one thread
  uint32_t cores = 2;
  uint32_t others = 0;         // threads that always run
  bool threads_sleep = false;  // they wait asleep: less processor time on a free machine too

  double wall(uint32_t threads) const {
    const double shared = alone_s * (0.1 + 0.9 / threads);
    return threads + others > cores && threads > 1 ? 25 * alone_s : shared;
  }
  double cpu(uint32_t threads) const {
    const double had = threads + others > cores ? static_cast<double>(cores) * threads / (threads + others) : threads;
    return (threads_sleep && threads > 1 ? 0.7 : 1.0) * had * wall(threads);
  }
};

struct Steps {
  uint32_t with_most = 0;  // steps
  double seconds = 0.0;
};

Steps run(ThreadCount& count, const Machine& machine, uint32_t steps) {
  Steps out;
  for (uint32_t i = 0; i < steps; ++i) {
    const uint32_t threads = count.now();
    out.with_most += threads == count.most();
    out.seconds += machine.wall(threads);
    count.took(machine.wall(threads), machine.cpu(threads), machine.cores - std::min(machine.cores, machine.others));
  }
  return out;
}

TEST(ThreadCount, AFreeMachineIsUsedWhole) {
  ThreadCount count(2);
  EXPECT_EQ(run(count, {}, 2000).with_most, 2000u);
}

TEST(ThreadCount, OneStepIsEnoughWhereSomebodyElseRuns) {
  ThreadCount count(2);
  const Machine busy{.others = 1};
  const Steps seen = run(count, busy, 2000);
  EXPECT_EQ(seen.with_most, 1u);
  EXPECT_EQ(count.now(), 1u);
  EXPECT_LT(seen.seconds, 1.05 * 2000 * busy.wall(1));
}

TEST(ThreadCount, ComesBackWhenTheMachineIsFreeAgain) {
  ThreadCount count(2);
  run(count, {.others = 3}, 100);
  EXPECT_EQ(count.now(), 1u);
  EXPECT_GT(run(count, {}, 200).with_most, 170u);
  run(count, {.others = 1}, 20);  // and down once more
  EXPECT_EQ(count.now(), 1u);
}

TEST(ThreadCount, ThreadsThatSleepAreRarelyDoubted) {
  ThreadCount count(2);
  const Machine machine{.threads_sleep = true};
  EXPECT_GT(run(count, machine, 2000).with_most, 1950u);
}

TEST(ThreadCount, OneBusyCoreOfManyCostsOneThread) {
  ThreadCount count(16);
  const Machine machine{.cores = 16, .others = 1};
  run(count, machine, 50);
  EXPECT_EQ(count.now(), 15u);
}

TEST(ThreadCount, OneThreadStaysOne) {
  ThreadCount count(1);
  run(count, {.others = 5}, 50);
  EXPECT_EQ(count.now(), 1u);
}

TEST(ThreadCount, TheSystemTellsOfItsLoad) {
  EXPECT_LT(free_cores(1), 1u << 20);
  const double before = processor_seconds();
  volatile double sum = 0.0;
  for (int i = 0; i < 20'000'000; ++i) sum = sum + i;
  EXPECT_GT(processor_seconds(), before);
}

}  // namespace
}  // namespace tierkv::engine
