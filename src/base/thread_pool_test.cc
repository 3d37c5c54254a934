#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace tierkv {
namespace {

TEST(ThreadPool, EveryIndexRunsOnce) {
  for (const uint32_t threads : {1u, 2u, 5u}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const uint32_t n : {0u, 1u, 2u, 7u, 1000u}) {
      std::vector<std::atomic<int>> hits(n);
      pool.run(n, [&](uint32_t i) { ++hits[i]; });
      for (uint32_t i = 0; i < n; ++i) ASSERT_EQ(hits[i], 1) << i << " of " << n << " on " << threads;
    }
  }
}

TEST(ThreadPool, ResultsAreSeenByTheCaller) {
  ThreadPool pool(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint32_t> out(64, 0);  // plain memory: run() must order it
    pool.run(64, [&](uint32_t i) { out[i] = i * i; });
    for (uint32_t i = 0; i < 64; ++i) ASSERT_EQ(out[i], i * i);
  }
}

TEST(ThreadPool, LoopsOfSeveralCallersShareTheWorkers) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  std::atomic<uint64_t> sum{0};
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        std::atomic<uint32_t> own{0};
        pool.run(17, [&](uint32_t i) { own += i + 1; });
        ASSERT_EQ(own, 17u * 18 / 2);
        sum += own;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 4u * 100 * 153);
}

TEST(ThreadPool, DestructionWithoutWorkIsQuick) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(4);
}

}  // namespace
}  // namespace tierkv
