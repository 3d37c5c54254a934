// spill_counts.h — what attention did with spilled blocks, for ColdStats. Threads: safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace tierkv::cache {

struct SpillCounts {
  std::atomic<uint64_t> loaded = 0, left_out = 0;
  std::atomic<double> left_out_mass = 0.0;

  void add_mass(double mass) {
    double most = left_out_mass.load(std::memory_order_relaxed);
    while (most < mass && !left_out_mass.compare_exchange_weak(most, mass, std::memory_order_relaxed)) {
    }
  }
};

}  // namespace tierkv::cache
