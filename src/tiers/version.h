// version.h — a number for a state of something that changes: nothing else, and no other state of it, ever has the same one.
//
// Whoever may change the thing says so first; it costs one store. The number is drawn when somebody asks for it. Two equal numbers
// are a proof that nothing changed, and an unequal one says only that something may have. Of a list it is also known how many
// elements at its front stayed as they were from one number to the next: whoever was told both need not look at these again.
// Threads: none; what protects the thing protects its version.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tierkv::tiers {

class Version {
 public:
  void may_change() { may_change_from(0); }
  // Elements before `first` stay as they are.
  void may_change_from(size_t first) {
    const uint64_t same = std::min<uint64_t>(first, changed() ? state_ >> kBits & kMostSame : kMostSame);
    state_ = kChanged | same << kBits | (state_ & kMostNumber);
  }
  // Never 0.
  uint64_t number() const { return step().number; }

  // The number if it is drawn already, else 0. Whoever draws it is the only one who is told what stayed: others look here.
  uint64_t drawn() const { return changed() ? 0 : state_; }

  struct Step {
    uint64_t number;    // as number()
    uint64_t before;    // the one that was drawn before, if this is what drew the number; 0: it is not, or there was none
    uint32_t same = 0;  // elements at the front that are as they were then
  };
  Step step() const {
    if (!changed()) return {state_, 0};
    const Step step{next(), state_ & kMostNumber, static_cast<uint32_t>(state_ >> kBits & kMostSame)};
    state_ = step.number;
    return step;
  }

 private:
  static constexpr uint64_t kBits = 43, kMostNumber = (uint64_t{1} << kBits) - 1, kMostSame = (uint64_t{1} << 20) - 1;
  static constexpr uint64_t kChanged = uint64_t{1} << 63;
  static uint64_t next() {
    static std::atomic<uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  bool changed() const { return (state_ & kChanged) != 0; }

  // The number; while it changes: the last one, how many elements stayed, and a bit that says so.
  mutable uint64_t state_ = kChanged;
};

}  // namespace tierkv::tiers
