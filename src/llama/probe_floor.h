// probe_floor.h — what is heard without an error worth the name: means of samples, and the floor they are above.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "llama/probe_trials.h"

namespace tierkv::llama {

struct Mean {
  double value = 0.0, error = 0.0;
};

// With the standard error of the samples.
Mean mean_of(const std::vector<double>& samples);

// A parabola over layers through the whispers: the earlier the first difference, the more there is to round differently.
class Floor {
 public:
  explicit Floor(std::span<const Trial> whispers);
  double at(uint32_t layer) const;
  double error() const { return error_; }

 private:
  struct Term {
    std::vector<double> less;  // of each polynomial of lower degree
    double weight = 0.0;
  };
  std::vector<Term> terms_;
  double error_ = 0.0;
};

}  // namespace tierkv::llama
