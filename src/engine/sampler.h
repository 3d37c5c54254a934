// sampler.h — picks the next token: penalties of what was said, then libllama's samplers, or the likeliest token at temperature 0.
//
// With a grammar only what fits it is picked: the token that would have been picked anyway, if it fits; else all tokens that do
// not are taken out and it is picked again.
//
// Errors:  Error, bad_input, for a grammar that takes too long over a token: some have more ways to read a text than can be kept.
// Threads: one at a time. The same options, seed and logits give the same tokens.
#pragma once

#include <llama.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/grammar.h"

namespace tierkv::engine {

struct SamplerOptions {
  float temperature = 0.0f;
  int top_k = 40;
  float top_p = 0.95f;
  float min_p = 0.05f;
  float repeat_penalty = 1.0f;
  int repeat_last = 64;  // tokens the penalties look back on
  // Taken off the logit of a token: for each time it was said, and once if it was.
  float frequency_penalty = 0.0f, presence_penalty = 0.0f;
  std::vector<llama_logit_bias> bias;      // added to logits; tokens of the vocabulary
  std::shared_ptr<const Grammar> grammar;  // null: any text
};

class Sampler {
 public:
  Sampler(const SamplerOptions& options, uint32_t seed);
  // The next token; it counts as said. LLAMA_TOKEN_NULL: the grammar has no token that goes on, nor lets the text end.
  llama_token pick(std::span<const float> logits);
  // A token of the prompt, for the penalties.
  void accept(llama_token token);

 private:
  void weigh(std::span<const float> logits);
  void penalise(std::span<llama_token_data> candidates) const;
  llama_token choose();
  bool fits(llama_token token);
  void accept_by_grammar(llama_token token);

  float penalty_, frequency_, presence_;
  size_t look_back_;
  std::deque<llama_token> recent_;
  std::vector<llama_logit_bias> bias_;
  std::unique_ptr<llama_sampler, decltype(&llama_sampler_free)> chain_;
  Grammar::Sampler grammar_{nullptr, llama_sampler_free};
  std::vector<llama_token_data> candidates_;
};

}  // namespace tierkv::engine
