// squat_feedback.h — how SQuat answers for errors already made: a small linear rule per channel.
//
// Threads: immutable after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tierkv::quant {

class SquatFeedback {
 public:
  // directions: rank x head_dim (calib::SquatTables::of). step: channels quantized between two answers.
  SquatFeedback(std::span<const float> directions, uint32_t head_dim, uint32_t step);

  uint32_t rank() const { return rank_; }
  uint32_t step() const { return step_; }
  // Channel c is to be shifted by -answer(c)·g, g being the error so far in the subspace, and its own error adds direction(c)·e to
  // g.
  const float* answer(uint32_t c) const { return answers_.data() + static_cast<size_t>(c) * rank_; }
  const float* direction(uint32_t c) const { return columns_.data() + static_cast<size_t>(c) * rank_; }

 private:
  uint32_t rank_, step_;
  std::vector<float> columns_, answers_;  // [channel][rank]
};

}  // namespace tierkv::quant
