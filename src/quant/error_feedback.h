// error_feedback.h — rounding a row channel by channel so that each error answers for those already made.
//
// An error e of a key weighs e'Pe, with P what queries look at. P = U·W·U' with U upper triangular, its diagonal 1, and W diagonal,
// so
//   e'Pe = sum over channels c of W_c·(e_c + sum over j < c of U_jc·e_j)²,
// and channel c, rounded after those before it, does best when its own error is -sum over j < c of U_jc·e_j and what rounding adds.
// A shift that the grid cuts short still lowers e'Pe. Rounding with P in mind is GPTQ's idea for weights.
//
// Threads: immutable once made.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tierkv::quant {

class ErrorFeedback {
 public:
  // metric: P, head_dim x head_dim, symmetric (what is above the diagonal is not read), positive definite. It is overwritten and
  // outlives this. Single precision and a fixed order: the same bits on every machine.
  ErrorFeedback(float* metric, uint32_t head_dim);

  // The U_jc of channel c, j = 0 .. c-1.
  const float* answers(uint32_t c) const { return rows_ + static_cast<size_t>(c) * head_dim_; }

 private:
  float* rows_;
  uint32_t head_dim_;
};

}  // namespace tierkv::quant
