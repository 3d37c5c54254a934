#include "llama/crew.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <new>
#include <numeric>
#include <thread>

namespace tierkv::llama {
namespace {

// As ggml runs a graph: every thread enters every node, and waits for the others after it.
template <class Lead>
void run_graph(Crew& crew, int threads, int nodes, const Lead& lead) {
  crew.begin();
  std::barrier between(threads);
  std::vector<std::thread> all;
  for (int ith = 0; ith < threads; ++ith) {
    all.emplace_back([&, ith] {
      for (int node = 0; node < nodes; ++node) {
        ith == 0 ? crew.lead([&] { lead(node); }) : crew.follow(ith);
        between.arrive_and_wait();
      }
    });
  }
  for (std::thread& thread : all) thread.join();
}

TEST(Crew, EveryIndexIsDoneOnce) {
  for (const int threads : {1, 2, 5}) {
    Crew crew;
    for (int graph = 0; graph < 3; ++graph) {
      run_graph(crew, threads, 40, [&](int node) {
        for (const uint32_t count : {0u, 1u, 7u, 100u + static_cast<uint32_t>(node)}) {
          std::vector<std::atomic<int>> hits(count);
          crew.run(count, [&](uint32_t i) { ++hits[i]; });
          for (const auto& hit : hits) ASSERT_EQ(hit, 1);
        }
      });
    }
  }
}

TEST(Crew, FollowersShareTheWork) {
  Crew crew;
  std::atomic<int> others{0};
  run_graph(crew, 2, 1, [&](int) {
    const auto leader = std::this_thread::get_id();
    // Each of two tasks waits for the other to have begun, so one thread alone would never end.
    std::atomic<int> begun{0};
    crew.run(2, [&](uint32_t) {
      ++begun;
      while (begun < 2) std::this_thread::yield();
      others += std::this_thread::get_id() != leader;
    });
  });
  EXPECT_EQ(others, 1);
}

TEST(Crew, WhatATaskThrowsReachesTheLeaderAlone) {
  for (const int threads : {1, 3}) {
    Crew crew;
    run_graph(crew, threads, 20, [&](int) {
      std::atomic<int> begun{0};
      EXPECT_THROW(crew.run(50,
                            [&](uint32_t i) {
                              ++begun;
                              if (i % 2 == 1) throw std::bad_alloc();
                            }),
                   std::bad_alloc);
      EXPECT_EQ(begun, 50);
      crew.run(5, [&](uint32_t) { ++begun; });  // forgotten
      EXPECT_EQ(begun, 55);
    });
  }
}

}  // namespace
}  // namespace tierkv::llama
