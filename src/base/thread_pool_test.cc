#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <new>
#include <stdexcept>
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

#if !defined(__SANITIZE_THREAD__)  // which starts no threads after a fork
// In a child: the limit is for ever.
int pool_with_little_room() {
  long pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (!file || std::fscanf(file, "%ld", &pages) != 1) return 2;
  std::fclose(file);
  const rlim_t room = static_cast<rlim_t>(pages) * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{40} << 20);
  const rlimit limit{room, room};  // a thread's stack takes 8 MiB of it
  if (::setrlimit(RLIMIT_AS, &limit) != 0) return 3;
  ThreadPool pool(1000);
  if (pool.threads() >= 1000) return 4;
  std::atomic<int> ran{0};
  pool.run(500, [&](uint32_t) { ++ran; });
  return ran == 500 ? 0 : 5;
}

TEST(ThreadPoolDeathTest, ASystemThatRefusesThreadsGivesFewer) {
  EXPECT_EXIT(::_exit(pool_with_little_room()), ::testing::ExitedWithCode(0), "");
}
#endif

TEST(ThreadPool, TheFirstExceptionReachesTheCallerAndThePoolGoesOn) {
  for (const uint32_t threads : {1u, 4u}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 300; ++round) {
      std::atomic<uint32_t> begun{0}, inside{0};
      const uint32_t bad = static_cast<uint32_t>(round) % 50;
      const auto body = [&](uint32_t i) {
        ++begun, ++inside;
        if (i == bad) {
          --inside;
          throw std::bad_alloc();
        }
        --inside;
      };
      EXPECT_THROW(pool.run(50, body), std::bad_alloc);
      ASSERT_EQ(inside, 0u) << "someone still uses what is on this stack";
      ASSERT_GT(begun, bad) << "indices are begun in order";
      std::atomic<uint32_t> sum{0};
      pool.run(50, [&](uint32_t i) { sum += i; });
      ASSERT_EQ(sum, 49u * 50 / 2);
    }
  }
}

TEST(ThreadPool, ALoopThatFailsLeavesTheOthersAlone) {
  ThreadPool pool(4);
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&pool, c] {
      for (int round = 0; round < 200; ++round) {
        std::vector<int> hits(31, 0);
        const auto body = [&](uint32_t i) {
          if (c % 2 && i == 7) throw std::runtime_error("seven");
          ++hits[i];
        };
        if (c % 2) {
          ASSERT_THROW(pool.run(31, body), std::runtime_error);
        } else {
          pool.run(31, body);
          for (const int hit : hits) ASSERT_EQ(hit, 1);
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(ThreadPool, EveryBodyMayThrow) {
  ThreadPool pool(3);
  for (int round = 0; round < 200; ++round) {
    EXPECT_THROW(pool.run(20, [](uint32_t) { throw std::runtime_error("all"); }), std::runtime_error);
  }
}

}  // namespace
}  // namespace tierkv
