// demo_check.h — is what attention gave right? A subset of the demo's outputs against softmax(q·K)·V in double precision, twice:
// over the rows that the cache says it holds, where attention itself must be right to a few digits, and over the rows as the model
// made them, where what the preset's codecs lose is added.
#pragma once

#include <string>
#include <vector>

#include "demo_model.h"
#include "tierkv/cache.h"

namespace demo {

// The most that outputs may be off, relative to their norm.
struct Tolerance {
  double attention = 1e-3;  // from double precision over the rows the cache holds
  double preset = 0.0;      // from double precision over the model's rows; 0: nothing is promised
};
// Of the presets that the demo runs by itself; any other setting gets no promise about the model's rows. `tokens`: of the sequence.
Tolerance tolerance_of(const std::string& preset, uint32_t tokens);

struct Check {
  double attention = 0.0, preset = 0.0;  // errors found, as above
  uint32_t outputs = 0;                  // rows of output that were looked at
};

// Attends from the newest token of every layer and compares some of its query heads. REQUIRES: `seq` holds the model's first
// `tokens` tokens, and nothing was evicted.
tierkv::Result<Check> check_attention(tierkv::AdaptiveKVCache& cache, tierkv::SeqId seq, const Model& model, const Shape& shape,
                                      uint32_t tokens);

}  // namespace demo
