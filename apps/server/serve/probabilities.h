// probabilities.h — how likely a token was, by the model's own logits: before penalties, samplers and grammars.
//
// Threads: one at a time for a TokenTrace; the rest any.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/tokenizer.h"

namespace tierkv::serve {

struct TokenProbability {
  std::string piece;                                   // its bytes, which may be part of a character
  double logprob = 0.0;                                // natural
  std::vector<std::pair<std::string, double>> likely;  // the likeliest tokens, best first
};

TokenProbability probability(llama_token token, std::span<const float> logits, uint32_t most_likely,
                             const engine::Tokenizer& tokenizer);

// Tokens that wait until their text is shown: of a text that ends in a stop string, what is cut off takes its tokens with it.
class TokenTrace {
 public:
  void add(TokenProbability token);
  // Those whose text begins in the bytes that have been shown by now.
  std::vector<TokenProbability> shown(size_t bytes);
  // All that are left: nothing was cut off.
  std::vector<TokenProbability> rest();

 private:
  std::deque<std::pair<size_t, TokenProbability>> held_;  // with where they begin
  size_t written_ = 0, shown_ = 0;                        // bytes
};

}  // namespace tierkv::serve
