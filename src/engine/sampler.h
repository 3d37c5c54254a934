// sampler.h — picks the next token: penalties of what was said, then libllama's samplers, or the likeliest token at temperature 0.
//
// Threads: one at a time. The same options, seed and logits give the same tokens.
#pragma once

#include <llama.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

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
};

class Sampler {
 public:
  Sampler(const SamplerOptions& options, uint32_t seed);
  // The next token; it counts as said.
  llama_token pick(std::span<const float> logits);
  // A token of the prompt, for the penalties.
  void accept(llama_token token);

 private:
  void penalise(std::span<llama_token_data> candidates) const;
  float penalty_, frequency_, presence_;
  size_t look_back_;
  std::deque<llama_token> recent_;
  std::unique_ptr<llama_sampler, decltype(&llama_sampler_free)> chain_;
  std::vector<llama_token_data> candidates_;
};

}  // namespace tierkv::engine
