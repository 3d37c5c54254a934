// slots.h — staging memory of calls that do not wait: what a call sends from stays until the device has taken it, and the next call
// takes another piece.
//
// A slot is free again when nobody holds it and its mark is reached. With kMost of them on their way a call waits for the oldest:
// the processor is that far ahead at most.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "cuda/memory/machine.h"

namespace tierkv::cuda {

struct Slot {
  explicit Slot(std::shared_ptr<Machine> owner) : machine(std::move(owner)), memory(*machine) {}
  ~Slot() {
    if (put) (void)mark->wait();
  }
  const std::shared_ptr<Machine> machine;  // it frees the memory
  Staging memory;
  std::shared_ptr<Mark> mark;  // of the call that it was lent to last, and of that call's other slots
  bool put = false;            // the mark was
  // Whoever lets go of it last may be another thread, which has read it to the end: hence a flag that says so, and not the count of
  // a shared pointer, which says nothing of when.
  std::atomic<bool> held{false};

  bool reached() const { return !put || mark->reached(); }
  uint8_t* data() const { return memory.data(); }
};

class Slots {
 public:
  explicit Slots(std::shared_ptr<Machine> machine) : machine_(std::move(machine)) {}

  // Of the call under way, and of the holder until he lets go of it. resource_exhausted: no memory.
  Result<std::shared_ptr<Slot>> take(size_t bytes);
  // Everything of the call is asked for: its slots are taken up to here.
  Status end_call();

  size_t size() const { return all_.size(); }

 private:
  static constexpr size_t kMost = 256, kLargest = size_t{64} << 20;  // a larger one is not kept

  Result<std::shared_ptr<Slot>> find();
  Status find_mark();

  const std::shared_ptr<Machine> machine_;
  std::deque<std::shared_ptr<Slot>> all_;  // longest unused first
  std::vector<std::shared_ptr<Slot>> open_;
  std::deque<std::shared_ptr<Mark>> marks_;  // longest unused first; one that only this list has is free
  std::shared_ptr<Mark> next_;               // of the call under way
};

}  // namespace tierkv::cuda
