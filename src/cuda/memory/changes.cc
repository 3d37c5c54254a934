#include "cuda/memory/changes.h"

#include <algorithm>

#include "base/guarded.h"

namespace tierkv::cuda {

void Changes::look_at_marks() noexcept {
  while (!marks_.empty() && marks_.front().mark->reached()) {
    done_ = std::max(done_, marks_.front().change);
    if (spare_.size() < spare_.capacity()) spare_.push_back(std::move(marks_.front().mark));
    marks_.pop_front();
  }
}

// Without memory for a mark the changes are taken to be on their way until one behind them is reached.
void Changes::end_call(bool done) noexcept {
  if (done) {
    done_ = marked_ = asked_;
    return;
  }
  if (marked_ == asked_) return;
  look_at_marks();
  (void)with_memory([&] {
    spare_.reserve(64);
    std::unique_ptr<Mark> mark;
    if (spare_.empty()) {
      auto made = machine_.make_mark();
      if (!made.ok()) return false;
      mark = std::move(made).value();
    } else {
      mark = std::move(spare_.back());
      spare_.pop_back();
    }
    if (!machine_.put(*mark).ok()) return false;
    marks_.push_back({asked_, std::move(mark)});
    marked_ = asked_;
    return true;
  });
}

bool Changes::done(uint64_t change) noexcept {
  if (change > done_) look_at_marks();
  return change <= done_;
}

}  // namespace tierkv::cuda
