// read_counts.h — what decoding did with the blocks it had a choice about: spilled ones for ColdStats, resident ones for
// MemoryStats. Threads: safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace tierkv::cache {

struct ReadCounts {
  std::atomic<uint64_t> read = 0, left_out = 0;
  std::atomic<double> left_out_mass = 0.0;  // the most so far

  void add_mass(double mass) {
    double most = left_out_mass.load(std::memory_order_relaxed);
    while (most < mass && !left_out_mass.compare_exchange_weak(most, mass, std::memory_order_relaxed)) {
    }
  }
};

}  // namespace tierkv::cache
