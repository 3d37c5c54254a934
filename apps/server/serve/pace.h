// pace.h — how many rows of prompts a step may take while others wait for their next token.
//
// A step computes one token of every answer that is being written and, beside them, pieces of prompts. Prompts alone fill a whole
// batch. Beside answers they get what stretches a step to kStretch times its own length, as far as the last steps tell, and one
// piece at least, so that everybody gets on.
//
// Threads: one at a time.
#pragma once

#include <cstdint>

namespace tierkv::serve {

class Pace {
 public:
  static constexpr double kStretch = 2.5;

  // Rows come in pieces of `piece`; a batch has `most` rows.
  Pace(uint32_t piece, uint32_t most) : piece_(piece), most_(most) {}

  // Rows of prompts for the next step, beside `writers` rows of answers: a multiple of the piece.
  uint32_t rows(uint32_t writers) const;
  // What a step took.
  void took(uint32_t writers, uint32_t prompt_rows, double seconds);
  uint32_t piece() const { return piece_; }

 private:
  uint32_t piece_, most_;
  double plain_s_ = 0.0;  // a step without prompts; 0: not known
  double row_s_ = 0.0;    // what a row of a prompt adds to one
};

}  // namespace tierkv::serve
