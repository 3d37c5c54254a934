// loan.h — a thing with memory of its own that a thread keeps from call to call: whoever borrows it has it alone, and what it has
// grown to is there the next time. Memory that is freed and asked for again costs a fault for every page of it.
//
// It is not where others look while it is on loan, so a call within a call gets one of its own; of two that come back the later
// stays.
#pragma once

#include <utility>

#include "base/per_thread.h"

namespace tierkv {

// T: one type for each use (per_thread.h), cheap to move, with nothing in it when it is new; trim(), noexcept, lets go of what is
// more than a thread should keep.
template <class T>
class Loan {
 public:
  Loan() : kept_(per_thread<T>()), value_(std::exchange(kept_, T())) {}
  ~Loan() {
    value_.trim();
    kept_ = std::move(value_);
  }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  T& operator*() { return value_; }
  T* operator->() { return &value_; }
  const T& operator*() const { return value_; }
  const T* operator->() const { return &value_; }

 private:
  T& kept_;
  T value_;
};

}  // namespace tierkv
