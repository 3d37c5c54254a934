// simt_copies.h — what goes on by itself on simt_machine.h while its threads do something else: copies into shared memory that a
// barrier completes, and a thread's own copies and products. All of it is done when somebody waits for it, as late as may be; until
// then the place of a copy holds bytes that are no data.
//
// To ThreadSanitizer a copy is written by the thread that asks for it, when it does (simt_races.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "cuda/simt/simt_races.h"

namespace tierkv::cuda::simt {

struct Copy {
  uint8_t* to;
  const void* from;
  uint32_t bytes;

  TIERKV_UNWATCHED void make() const { std::memcpy(to, from, bytes); }
  TIERKV_UNWATCHED void spoil() const { std::memset(to, 0xFF, bytes); }
};

// A barrier in shared memory: a phase is over when so many threads have arrived and the bytes are there that they told of.
// Functions return what is wrong, or null.
class CopyBarrier {
 public:
  CopyBarrier() = default;
  explicit CopyBarrier(uint32_t arrivals) : arrivals_(arrivals), awaited_(arrivals) {}

  TIERKV_UNWATCHED const char* arrive(uint32_t bytes) {
    const Unwatched books;
    if (awaited_ == 0) end_phase();
    if (awaited_ == 0) return "more threads arrive at a barrier than it was made for";
    --awaited_, expected_ += bytes;
    give(this);
    return nullptr;
  }
  TIERKV_UNWATCHED void add(const Copy& copy) {
    const Unwatched books;
    copies_.push_back(copy);
    give(this);
  }
  // Whether the phase of this parity is over.
  TIERKV_UNWATCHED bool over(uint32_t parity) {
    const Unwatched books;
    if (phase_ == parity) end_phase();
    if (phase_ == parity) return false;
    take(this);
    return true;
  }
  TIERKV_UNWATCHED const char* wrong() const {
    return expected_ < 0 ? "a barrier is given more bytes than it was told to expect" : nullptr;
  }

 private:
  void end_phase() {
    for (const Copy& copy : copies_) copy.make(), expected_ -= copy.bytes;
    copies_.clear();
    if (awaited_ == 0 && expected_ == 0) phase_ ^= 1, awaited_ = arrivals_;
  }

  uint32_t phase_ = 0, arrivals_ = 0, awaited_ = 0;
  int64_t expected_ = 0;
  std::vector<Copy> copies_;
};

// What a thread put off, in groups: done when it waits for all groups but the last few.
template <class Task>
class PutOff {
 public:
  TIERKV_UNWATCHED void clear() {
    const Unwatched books;
    tasks_.clear(), groups_ = 0;
  }
  TIERKV_UNWATCHED void add(Task task) {
    const Unwatched books;
    tasks_.push_back({std::move(task), groups_});
  }
  TIERKV_UNWATCHED void end_group() { ++groups_; }
  // Those that it is time for, in their order.
  TIERKV_UNWATCHED std::vector<Task> take_all() { return take_before(UINT32_MAX); }
  TIERKV_UNWATCHED std::vector<Task> take_but(uint32_t groups) { return take_before(groups_ - std::min(groups, groups_)); }

 private:
  struct One {
    Task task;
    uint32_t group;
  };
  TIERKV_UNWATCHED std::vector<Task> take_before(uint32_t end) {
    const Unwatched books;
    std::vector<Task> due;
    size_t n = 0;
    while (n < tasks_.size() && tasks_[n].group < end) due.push_back(std::move(tasks_[n++].task));
    tasks_.erase(tasks_.begin(), tasks_.begin() + static_cast<ptrdiff_t>(n));
    return due;
  }

  std::vector<One> tasks_;
  uint32_t groups_ = 0;  // that are complete
};

}  // namespace tierkv::cuda::simt
