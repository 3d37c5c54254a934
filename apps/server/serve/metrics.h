// metrics.h — what the server counts, and Prometheus' text of it: our names and, beside them, llama-server's, so that its
// dashboards work.
//
// Threads: any.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>

#include "tierkv/stats.h"

namespace tierkv::serve {

// Cumulative counts of durations, as Prometheus wants them.
class Histogram {
 public:
  static constexpr std::array<double, 12> kBounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0};
  void add(double seconds);
  // Lines of `name`_bucket, _sum and _count.
  std::string text(const std::string& name) const;
  uint64_t count() const { return count_; }

 private:
  std::array<uint64_t, kBounds.size()> at_most_{};
  double sum_ = 0.0;
  uint64_t count_ = 0;
};

struct Counts {
  uint64_t requests = 0;   // answers that were asked for
  uint64_t refused = 0;    // with 429
  uint64_t abandoned = 0;  // their client left
  uint64_t timed_out = 0;
  uint64_t failed = 0;
  uint64_t prompt_tokens = 0;  // read
  uint64_t cached_tokens = 0;  // of prompts, that were not read again
  uint64_t written_tokens = 0;
  double prompt_s = 0.0, written_s = 0.0;
  uint64_t steps = 0, busy_slots = 0;  // summed over steps
  uint64_t longest = 0;                // tokens of a sequence
  // What became of idle conversations.
  uint64_t prefix_hits = 0, prefix_hits_disk = 0, prefix_misses = 0;
  uint64_t prefix_tokens = 0, prefix_tokens_disk = 0;  // of prompts that were found
  uint64_t forked = 0, parked = 0, woken = 0, dropped = 0;
  uint64_t suspended = 0;  // answers that waited for memory
  Histogram first_token, between_tokens;
};

// What is so at this moment.
struct Gauges {
  uint32_t slots = 0, busy = 0, waiting = 0;
  uint32_t conversations = 0, parked = 0;
  MemoryStats memory;
  uint32_t streams = 1;  // rows of a token: layers times KV heads
  QualityMetrics quality;
  std::string version;
};

class Metrics {
 public:
  template <class Change>
  void update(const Change& change) {
    const std::lock_guard lock(mutex_);
    change(counts_);
  }
  Counts counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  mutable std::mutex mutex_;
  Counts counts_;
};

// The body of /metrics.
std::string prometheus_text(const Counts& counts, const Gauges& gauges);

}  // namespace tierkv::serve
