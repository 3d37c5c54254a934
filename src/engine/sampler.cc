// sampler.cc — a chain of libllama's samplers over logits of our own keeping.
#include "engine/sampler.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/error.h"

namespace tierkv::engine {
namespace {

// Of one token. The whole of a large vocabulary takes a tenth of it.
constexpr double kMostGrammarSeconds = 0.25;

double processor_seconds() {
  timespec time{};
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options, uint32_t seed)
    : penalty_(options.repeat_penalty),
      frequency_(options.frequency_penalty),
      presence_(options.presence_penalty),
      look_back_(static_cast<size_t>(options.repeat_last)),
      bias_(options.bias),
      chain_(llama_sampler_chain_init(llama_sampler_chain_default_params()), llama_sampler_free) {
  if (options.grammar) grammar_ = options.grammar->start();
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
  const double start = grammar_ != nullptr ? processor_seconds() : 0.0;
  weigh(logits);
  llama_token token = choose();
  if (grammar_ != nullptr) {
    if (!fits(token)) {
      weigh(logits);
      llama_token_data_array all{candidates_.data(), candidates_.size(), -1, false};
      llama_sampler_apply(grammar_.get(), &all);
      token = choose();
      if (!fits(token)) return LLAMA_TOKEN_NULL;
    }
    accept_by_grammar(token);
    if (processor_seconds() - start > kMostGrammarSeconds) {
      bad_input("the grammar takes too long: it has too many ways to read the same text");
    }
  }
  accept(token);
  return token;
}

void Sampler::weigh(std::span<const float> logits) {
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) candidates_[i] = {static_cast<llama_token>(i), logits[i], 0.0f};
  for (const llama_logit_bias& one : bias_) candidates_[static_cast<size_t>(one.token)].logit += one.bias;
  penalise(candidates_);
}

llama_token Sampler::choose() {
  llama_token_data_array array{candidates_.data(), candidates_.size(), -1, false};
  llama_sampler_apply(chain_.get(), &array);
  return array.data[std::clamp<int64_t>(array.selected, 0, static_cast<int64_t>(array.size) - 1)].id;
}

bool Sampler::fits(llama_token token) {
  llama_token_data one{token, 1.0f, 0.0f};
  llama_token_data_array array{&one, 1, -1, false};
  llama_sampler_apply(grammar_.get(), &array);
  return std::isfinite(one.logit);
}

// libllama throws where a token does not fit.
void Sampler::accept_by_grammar(llama_token token) {
  try {
    llama_sampler_accept(grammar_.get(), token);
  } catch (const std::exception&) {
    fail("the grammar lost its place in the text");
  }
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
