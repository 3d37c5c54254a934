// version.h — a number for a state of something that changes: nothing else, and no other state of it, ever has the same one.
//
// Whoever may change the thing says so first; it costs one store. The number is drawn when somebody asks for it. Two equal numbers
// are a proof that nothing changed, and an unequal one says only that something may have.
// Threads: none; what protects the thing protects its version.
#pragma once

#include <atomic>
#include <cstdint>

namespace tierkv::tiers {

class Version {
 public:
  void may_change() { number_ = 0; }
  // Never 0.
  uint64_t number() const {
    if (number_ == 0) number_ = next();
    return number_;
  }

 private:
  static uint64_t next() {
    static std::atomic<uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  mutable uint64_t number_ = 0;
};

}  // namespace tierkv::tiers
