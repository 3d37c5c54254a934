// sampler.cc — a chain of libllama's samplers over logits of our own keeping.
#include "engine/sampler.h"

#include <algorithm>
#include <map>

namespace tierkv::engine {

Sampler::Sampler(const SamplerOptions& options, uint32_t seed)
    : penalty_(options.repeat_penalty),
      frequency_(options.frequency_penalty),
      presence_(options.presence_penalty),
      look_back_(static_cast<size_t>(options.repeat_last)),
      chain_(llama_sampler_chain_init(llama_sampler_chain_default_params()), llama_sampler_free) {
  auto add = [this](llama_sampler* sampler) { llama_sampler_chain_add(chain_.get(), sampler); };
  if (options.temperature <= 0.0f) {
    add(llama_sampler_init_greedy());
    return;
  }
  if (options.top_k > 0) add(llama_sampler_init_top_k(options.top_k));
  if (options.top_p < 1.0f) add(llama_sampler_init_top_p(options.top_p, 1));
  if (options.min_p > 0.0f) add(llama_sampler_init_min_p(options.min_p, 1));
  add(llama_sampler_init_temp(options.temperature));
  add(llama_sampler_init_dist(seed));
}

llama_token Sampler::pick(std::span<const float> logits) {
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) candidates_[i] = {static_cast<llama_token>(i), logits[i], 0.0f};
  penalise(candidates_);
  llama_token_data_array array{candidates_.data(), candidates_.size(), -1, false};
  llama_sampler_apply(chain_.get(), &array);
  const llama_token token = array.data[std::clamp<int64_t>(array.selected, 0, static_cast<int64_t>(array.size) - 1)].id;
  accept(token);
  return token;
}

void Sampler::accept(llama_token token) {
  llama_sampler_accept(chain_.get(), token);
  recent_.push_back(token);
  if (recent_.size() > look_back_) recent_.pop_front();
}

// The repeat penalty takes each recent token once, however often it was said.
void Sampler::penalise(std::span<llama_token_data> candidates) const {
  if (penalty_ == 1.0f && frequency_ == 0.0f && presence_ == 0.0f) return;
  std::map<llama_token, int> said;
  for (const llama_token token : recent_) ++said[token];
  for (const auto& [token, times] : said) {
    float& logit = candidates[static_cast<size_t>(token)].logit;
    logit = logit > 0.0f ? logit / penalty_ : logit * penalty_;
    logit -= static_cast<float>(times) * frequency_ + presence_;
  }
}

}  // namespace tierkv::engine
