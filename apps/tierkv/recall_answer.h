// recall_answer.h — what a model's logits say about an answer: forced into digits, or free.
//
// Nothing here knows a model: logits are rows of numbers, tokens are indices with a text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/tokenizer.h"
#include "engine_names.h"

namespace tierkv::cli {

// Which tokens may come next when nothing but a number of so many digits may be said, with at most one space before it.
class DigitMask {
 public:
  // Of all tokens of a vocabulary, by their text.
  explicit DigitMask(const std::vector<std::string>& pieces);
  explicit DigitMask(const Tokenizer& tokenizer);

  // Those that continue what was said. Empty when the number is complete, or when something else was said.
  std::vector<llama_token> allowed(const std::string& said, size_t digits) const;

 private:
  void add(llama_token token, std::string piece);
  std::vector<std::pair<llama_token, std::string>> candidates_;
};

// The likeliest token, of all or of those that are allowed. REQUIRES: logits is not empty, nor is `of`.
llama_token likeliest(std::span<const float> logits);
llama_token likeliest(std::span<const float> logits, std::span<const llama_token> of);

// The logarithm of a token's probability, over all tokens or over those that are allowed; -infinity for one that is not.
double log_probability(std::span<const float> logits, llama_token token);
double log_probability(std::span<const float> logits, llama_token token, std::span<const llama_token> of);

}  // namespace tierkv::cli
