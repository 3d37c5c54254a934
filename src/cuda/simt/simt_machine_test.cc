// The machine that tests run kernels on: what it does right, and that it finds what kernels do wrong.
//
// ctest: threads
#include "cuda/simt/simt_machine.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <utility>
#include <vector>

#define TIERKV_SIMT
#include "cuda/simt/warpgroup.cuh"

#ifdef TIERKV_FINDS_RACES
// ThreadSanitizer tells of races here, and lets no process end well that had one: see the end of this file.
static int races_reported = 0;
extern "C" void __tsan_on_report(void*) { ++races_reported; }
#endif

namespace tierkv::cuda {
namespace {

using simt::Failure;
using simt::Machine;

constexpr Machine::Order kOrders[] = {Machine::Order::first_to_last, Machine::Order::last_to_first};

// Thread i of a block writes a number, and reads the one of the thread before it.
std::vector<uint32_t> pass_on(uint32_t threads, Machine::Order order, void (*barrier)()) {
  std::vector<uint32_t> got(threads);
  Machine().run(1, threads, 4 * threads, order, [&] {
    store1(4 * threadIdx.x, 100 + threadIdx.x);
    barrier();
    got[threadIdx.x] = load1(4 * ((threadIdx.x + threads - 1) % threads));
  });
  return got;
}

TEST(SimtMachine, WhatIsReadBehindABarrierIsThere) {
  for (const Machine::Order order : kOrders) {
    const std::vector<uint32_t> got = pass_on(96, order, [] { __syncthreads(); });
    for (uint32_t i = 0; i < 96; ++i) EXPECT_EQ(got[i], 100 + (i + 95) % 96);
  }
}

TEST(SimtMachine, AMissingBarrierIsSeen) {
  for (const Machine::Order order : kOrders) {
    const std::vector<uint32_t> got = pass_on(32, order, [] {});
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < 32; ++i) wrong += got[i] != 100 + (i + 31) % 32;
    EXPECT_NE(wrong, 0u);
  }
#ifdef TIERKV_FINDS_RACES
  EXPECT_NE(std::exchange(races_reported, 0), 0);
#endif
}

#ifdef TIERKV_FINDS_RACES
// Results may be right in every order of the threads that there is here, and a device has others. Each race has a place of its own:
// ThreadSanitizer tells once of each.
void run(uint32_t threads, void (*kernel)()) { Machine().run(1, threads, 4096, Machine::Order::first_to_last, kernel); }

TEST(SimtMachine, ARaceIsSeenWhereResultsAreRight) {
  // All threads have met in the shuffle before one writes; but what they read may come later.
  run(32, [] {
    const uint32_t before = load1(0);
    if (__shfl_xor_sync(~0u, uint32_t{threadIdx.x}, 1) == 1 && threadIdx.x == 0) store1(0, before + 1);
  });
  EXPECT_NE(std::exchange(races_reported, 0), 0) << "a shuffle orders nothing";
  run(64, [] {
    if (threadIdx.x == 0) store1(16, 7);
    __syncwarp();
    if (threadIdx.x == 40) {
      EXPECT_NE(load1(16), 8u);
    }
  });
  EXPECT_NE(std::exchange(races_reported, 0), 0) << "a warp's barrier orders nothing of another warp";
  run(32, [] {
    if (threadIdx.x == 0) store1(32, 7);
    __syncwarp(threadIdx.x < 4 ? 0xFu : ~0xFu);
    if (threadIdx.x == 9) {
      EXPECT_NE(load1(32), 8u);
    }
  });
  EXPECT_NE(std::exchange(races_reported, 0), 0) << "nor that of some threads anything of others";
  run(32, [] {
    alignas(16) static const uint32_t kData[4] = {1, 2, 3, 4};
    if (threadIdx.x == 5) {
      EXPECT_NE(load1(48), 1u);
    }
    if (threadIdx.x == 7) fetch16(48, kData), wait_for_fetched();
  });
  EXPECT_NE(std::exchange(races_reported, 0), 0) << "a copy writes where another thread reads";
}

TEST(SimtMachine, WhatBarriersOrderIsNoRace) {
  run(64, [] {
    if (threadIdx.x == 0) store1(64, 7);
    __syncthreads();
    if (threadIdx.x == 40) store1(64, load1(64) + 1);
    __syncwarp();
    if (threadIdx.x == 41) {
      EXPECT_NE(load1(64), 7u);
    }
  });
  run(32, [] {
    const uint32_t quad = threadIdx.x / 4;
    if (threadIdx.x % 4 == 1) store1(4 * quad, 7);
    __syncwarp(0xFu << (4 * quad));
    EXPECT_EQ(load1(4 * quad), 7u);
  });
  run(32, [] {
    __shared__ uint32_t sum;
    if (threadIdx.x == 0) sum = 0;
    __syncwarp();
    atomicAdd(&sum, uint32_t{threadIdx.x});
    __syncwarp();
    EXPECT_EQ(sum, 496u);
  });
  EXPECT_EQ(races_reported, 0);
}
#endif

TEST(SimtMachine, ThreadsOfAWarpThatPartAreRefused) {
  EXPECT_THROW(Machine().run(1, 32, 0, kOrders[0], [] { threadIdx.x < 7 ? (void)__any_sync(~0u, true) : __syncwarp(); }), Failure);
  EXPECT_THROW(Machine().run(1, 32, 0, kOrders[0],
                             [] {
                               if (threadIdx.x != 3) __syncwarp();
                             }),
               Failure);
  EXPECT_THROW(Machine().run(1, 64, 0, kOrders[0],
                             [] {
                               if (threadIdx.x < 32) __syncthreads();
                             }),
               Failure);
}

TEST(SimtMachine, AddressesAreChecked) {
  EXPECT_THROW(Machine().run(1, 32, 128, kOrders[0], [] { store1(128, 1); }), Failure);
  EXPECT_THROW(Machine().run(1, 32, 128, kOrders[0], [] { (void)load4(8); }), Failure);
  EXPECT_THROW(Machine().run(1, 32, 128, kOrders[0], [] { (void)load_matrices(threadIdx.x * 8); }), Failure);
}

TEST(SimtMachine, CopiesAreThereWhenTheyHaveBeenWaitedForAndNotBefore) {
  alignas(16) static const uint32_t kData[4] = {1, 2, 3, 4};
  Machine().run(2, 32, 64, kOrders[0], [] {
    __shared__ uint64_t barrier;
    const uint32_t at = shared_address(&barrier);
    if (threadIdx.x == 0) {
      barrier_init(at);
      copy_in(16, kData, 16, at);
    }
    __syncwarp();
    EXPECT_NE(load1(16), 1u);
    __syncwarp();
    barrier_wait(at, 0);
    EXPECT_EQ(load4(16).w, 4u);
  });
  EXPECT_THROW(Machine().run(1, 32, 64, kOrders[0],
                             [] {
                               __shared__ uint64_t never;
                               const uint32_t at = shared_address(&never);
                               if (threadIdx.x == 0) barrier_init(at);
                               __syncwarp();
                               barrier_wait(at, 0);
                             }),
               Failure);
}

TEST(SimtMachine, ABarrierIsForAsManyThreadsAsItWasMadeFor) {
  alignas(16) static const uint32_t kData[4] = {1, 2, 3, 4};
  for (const Machine::Order order : kOrders) {
    Machine().run(1, 64, 256, order, [] {
      constexpr uint32_t kThere = 128, kRead = 136;  // in shared memory
      if (threadIdx.x == 0) barrier_init(kThere), barrier_init_for(kRead, 63);
      __syncthreads();
      for (uint32_t i = 0; i < 3; ++i) {
        if (threadIdx.x != 0) {
          barrier_wait(kThere, i % 2);
          EXPECT_EQ(load1(0), 1u);
          barrier_arrive(kRead);
          continue;
        }
        barrier_wait(kRead, i % 2 ^ 1u);
        copy_in(0, kData, 16, kThere);
      }
    });
  }
  const auto used = [](void (*kernel)()) { Machine().run(1, 32, 256, kOrders[0], kernel); };
  EXPECT_THROW(used([] { barrier_wait(128, 0); }), Failure) << "nobody made it";
  EXPECT_THROW(used([] {
                 if (threadIdx.x != 0) return;
                 barrier_init(128);
                 expect_bytes(128, 16);
                 expect_bytes(128, 16);  // the phase is not over: nothing was copied
               }),
               Failure);
}

TEST(SimtMachine, BarriersByNumberLetPassAndMakeWait) {
  for (const Machine::Order order : kOrders) {
    Machine().run(1, 96, 64, order, [] {
      const uint32_t warp = threadIdx.x / 32;
      if (warp == 0) return;
      for (uint32_t i = 0; i < 3; ++i) {  // warps take turns
        if (warp == 2 || i != 0) meet(warp, 64);
        const uint32_t before = load1(0);
        __syncwarp();
        if (threadIdx.x % 32 == 0) store1(0, i == 0 && warp == 1 ? 1 : before + 1);
        __syncwarp();
        EXPECT_EQ(load1(0), 2 * i + warp);
        if (warp == 1 || i != 2) let_pass(3 - warp, 64);
      }
    });
  }
}

TEST(SimtMachine, ProductsOfFourWarpsAreMadeWhenTheyAreWaitedFor) {
  // A is row + k / 16, B is k - n / 4 in rows of 128 bytes whose parts are exchanged: sums of halves that are exact.
  std::vector<float> got(64 * 64);
  Machine().run(1, 128, 64 * 128, kOrders[1], [&] {
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, row = threadIdx.x / 32 * 16 + g;
    for (uint32_t i = threadIdx.x; i < 64 * 16; i += 128) {
      const uint32_t at = i / 16 * 128 + 32 + i % 16 * 2;  // the second step of a k of 64
      store_half(at ^ (at >> 7 & 7u) << 4, static_cast<float>(i % 16) - static_cast<float>(i / 16) / 4.0f);
    }
    __syncthreads();
    const auto pair = [](uint32_t r, uint32_t k) {
      return pack_halves(static_cast<float>(r) + static_cast<float>(k) / 16.0f,
                         static_cast<float>(r) + static_cast<float>(k + 1) / 16.0f);
    };
    const uint32_t a[4] = {pair(row, 2 * t), pair(row + 8, 2 * t), pair(row, 2 * t + 8), pair(row + 8, 2 * t + 8)};
    float c[8][4] = {}, other[8][4] = {};
    group_begin();
    group_multiply(c, a, operand_desc(32), false);
    group_commit();
    group_multiply(other, a, operand_desc(32), false);
    group_commit();
    EXPECT_EQ(c[7][3], 0.0f);
    group_wait<1>();
    EXPECT_NE(c[7][3], 0.0f);
    EXPECT_EQ(other[7][3], 0.0f);
    group_multiply(c, a, operand_desc(32), true);
    group_commit();
    group_wait<0>();
    for (uint32_t n = 0; n < 8; ++n) {
      for (uint32_t i = 0; i < 4; ++i) got[(row + i / 2 * 8) * 64 + 8 * n + 2 * t + i % 2] = c[n][i] - other[n][i];
    }
  });
  for (uint32_t row = 0; row < 64; ++row) {
    for (uint32_t n = 0; n < 64; ++n) {
      float want = 0.0f;
      for (uint32_t k = 0; k < 16; ++k)
        want += (static_cast<float>(row) + static_cast<float>(k) / 16.0f) * (static_cast<float>(k) - static_cast<float>(n) / 4.0f);
      EXPECT_FLOAT_EQ(got[row * 64 + n], want);
    }
  }
}

TEST(SimtMachine, FetchedBytesAreThereWhenTheirGroupHasBeenWaitedFor) {
  alignas(16) static const uint32_t kData[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  Machine().run(1, 32, 64, kOrders[0], [] {
    if (threadIdx.x != 3) return;
    fetch16(0, kData);
    end_fetches();
    fetch16(16, kData + 4);
    end_fetches();
    EXPECT_NE(load1(0), 1u);
    wait_for_fetches<1>();
    EXPECT_EQ(load1(0), 1u);
    EXPECT_NE(load1(16), 5u);
    wait_for_fetches<0>();
    EXPECT_EQ(load1(16), 5u);
    fetch4(0, kData + 2);
    wait_for_fetched();
    EXPECT_EQ(load1(0), 3u);
  });
}

TEST(SimtMachine, SomeThreadsOfAWarpMayMeetAlone) {
  for (const Machine::Order order : kOrders) {
    Machine().run({2, 3}, 32, 128, order, [] {
      const uint32_t quad = threadIdx.x / 4, at = 4 * threadIdx.x;
      store1(at, blockIdx.x + 10 * blockIdx.y + 100 * threadIdx.x);
      if (quad % 2 != 0) return;
      __syncwarp(0xFu << (4 * quad));
      EXPECT_EQ(load1(at ^ 4u), blockIdx.x + 10 * blockIdx.y + 100 * (threadIdx.x ^ 1u));
      EXPECT_EQ(gridDim.x * gridDim.y, 6u);
    });
  }
  EXPECT_THROW(Machine().run(1, 32, 0, kOrders[0], [] { __syncwarp(threadIdx.x < 4 ? 0xFu : 0xFFu); }), Failure);
}

TEST(SimtMachine, AProductIsTheProduct) {
  // A is row + k/16, B is k - column/4: sums of halves that are exact.
  const auto a = [](uint32_t row, uint32_t k) { return static_cast<float>(row) + static_cast<float>(k) / 16.0f; };
  const auto b = [](uint32_t k, uint32_t column) { return static_cast<float>(k) - static_cast<float>(column) / 4.0f; };
  std::vector<float> got(16 * 8);
  Machine().run(1, 32, 0, kOrders[1], [&] {
    const uint32_t g = threadIdx.x / 4, t = threadIdx.x % 4;
    const auto pair = [&](uint32_t row, uint32_t k) { return pack_halves(a(row, k), a(row, k + 1)); };
    float c[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    multiply(c, pair(g, 2 * t), pair(g + 8, 2 * t), pair(g, 2 * t + 8), pair(g + 8, 2 * t + 8),
             pack_halves(b(2 * t, g), b(2 * t + 1, g)), pack_halves(b(2 * t + 8, g), b(2 * t + 9, g)));
    for (uint32_t i = 0; i < 4; ++i) got[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = c[i];
  });
  for (uint32_t row = 0; row < 16; ++row) {
    for (uint32_t column = 0; column < 8; ++column) {
      float want = 1.0f;
      for (uint32_t k = 0; k < 16; ++k) want += a(row, k) * b(k, column);
      EXPECT_FLOAT_EQ(got[row * 8 + column], want);
    }
  }
}

TEST(SimtMachine, AMatrixTurnedTwiceIsItself) {
  Machine().run(1, 32, 0, kOrders[0], [] {
    const uint32_t x = threadIdx.x * 0x00030001u, once = transposed(x);
    EXPECT_EQ(transposed(once), x);
    // Lane (g, t) has halves 2t and 2t + 1 of row g: the first half of lane 1 is row 0, column 2, and comes to row 2, column 0.
    const uint32_t other = __shfl_sync(~0u, x, 1);
    if (threadIdx.x == 8) {
      EXPECT_EQ(once & 0xFFFFu, other & 0xFFFFu);
    }
  });
}

#ifdef TIERKV_FINDS_RACES
// Made after the tests, gone before them: where all races were expected the process ends as its tests did.
const struct AtTheEnd {
  ~AtTheEnd() {
    if (races_reported != 0) return;
    std::fflush(stdout);
    syscall(SYS_exit_group, ::testing::UnitTest::GetInstance()->Passed() ? 0 : 1);  // _exit() asks ThreadSanitizer
  }
} at_the_end;
#endif

}  // namespace
}  // namespace tierkv::cuda
