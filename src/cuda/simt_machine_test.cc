// The machine that tests run kernels on: what it does right, and that it finds what kernels do wrong.
#include "cuda/simt_machine.h"

#include <gtest/gtest.h>

#include <vector>

#define TIERKV_SIMT
#include "cuda/warp.cuh"

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
}

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

}  // namespace
}  // namespace tierkv::cuda
