// rope.h — turning rows by any number of positions, as a model's RoPE would.
//
// R(-s0) applied to keys and queries alike leaves their products unchanged for any s0, whatever rounding the angles suffered: a
// frame may be chosen per block.
// Threads:  immutable after construction.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tierkv/rope.h"

namespace tierkv::calib {

// A rope with its sines at hand: positions are digits of base 128, one table a digit.
class Turner {
 public:
  // REQUIRES: channels of `rope` are below head_dim and named once.
  Turner(const Rope& rope, uint32_t head_dim);

  // out = rows turned by `by` positions (forward when positive). in == out is allowed. |by| < 2^21.
  void turn(const float* rows, uint32_t count, int64_t by, float* out) const;
  // Cosines and sines of that turn, one each a pair.
  void angles(int64_t by, float* cosine, float* sine) const;
  // Pair p is channels (2p, 2p + 1): 1; (p, p + pairs): as many as there are pairs. 0: neither, or nothing turns.
  uint32_t apart() const { return apart_; }
  const Rope& rope() const { return rope_; }
  size_t bytes() const { return tables_.size() * sizeof(float) + channels_.size() * sizeof(uint16_t); }
  // For whoever turns rows elsewhere: [digit][value][cosines of the pairs, sines of the pairs], kDigits digits of kBase values, and
  // the two channels of each pair.
  const float* tables() const { return tables_.data(); }
  const uint16_t* channels() const { return channels_.data(); }

 private:
  static constexpr int kDigits = 3;
  static constexpr int kDigitBits = 7;
  static constexpr uint32_t kBase = 1u << kDigitBits;

  Rope rope_;
  uint32_t dim_;
  uint32_t apart_ = 0;
  std::vector<uint16_t> channels_;
  std::vector<float> tables_;  // [digit][value][cos of every pair, sin of every pair]
};

}  // namespace tierkv::calib
