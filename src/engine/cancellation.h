// cancellation.h — a request to stop, made by one party and looked at by another that works.
//
// Threads: any of them, and signal handlers. Who works polls it every few milliseconds, inside libllama's graphs too.
#pragma once

#include <atomic>

namespace tierkv::engine {

class Cancellation {
 public:
  void request() noexcept { requested_.store(true, std::memory_order_relaxed); }
  void clear() noexcept { requested_.store(false, std::memory_order_relaxed); }
  bool requested() const noexcept { return requested_.load(std::memory_order_relaxed); }

 private:
  static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may request");
  std::atomic<bool> requested_{false};
};

// A null pointer is work that nobody stops.
inline bool requested(const Cancellation* cancel) noexcept { return cancel != nullptr && cancel->requested(); }

}  // namespace tierkv::engine
