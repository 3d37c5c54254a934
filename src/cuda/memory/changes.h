// changes.h — which changes of a device's memory are done: what is to be read aside (machine.h) must be, and nobody waits for it.
//
// Whoever asks for a change on the ordinary streams takes the next number. When a call ends without anybody having waited, a mark
// is put behind what it changed.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "cuda/memory/machine.h"

namespace tierkv::cuda {

class Changes {
 public:
  explicit Changes(Machine& machine) : machine_(machine) {}

  // Numbers begin with 1 and are in the order in which things are asked for.
  uint64_t next() { return ++asked_; }
  // Everything of the call is asked for. `done`: and was waited for.
  void end_call(bool done) noexcept;
  // False: it may be on its way.
  bool done(uint64_t change) noexcept;

 private:
  void look_at_marks() noexcept;

  struct Marked {
    uint64_t change;
    std::unique_ptr<Mark> mark;
  };

  Machine& machine_;
  uint64_t asked_ = 0, marked_ = 0, done_ = 0;  // the last of each
  std::deque<Marked> marks_;                    // oldest first
  std::vector<std::unique_ptr<Mark>> spare_;
};

}  // namespace tierkv::cuda
