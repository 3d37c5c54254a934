#include "serve/probabilities.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tierkv::serve {

TokenProbability probability(llama_token token, std::span<const float> logits, uint32_t most_likely,
                             const engine::Tokenizer& tokenizer) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(logit - most);
  const double whole = most + std::log(sum);
  TokenProbability out;
  out.piece = tokenizer.piece(token);
  out.logprob = logits[static_cast<size_t>(token)] - whole;
  std::vector<llama_token> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t count = std::min<size_t>(most_likely, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](llama_token a, llama_token b) {
                      const float one = logits[static_cast<size_t>(a)], other = logits[static_cast<size_t>(b)];
                      return one != other ? one > other : a < b;
                    });
  for (size_t i = 0; i < count; ++i)
    out.likely.emplace_back(tokenizer.piece(order[i]), logits[static_cast<size_t>(order[i])] - whole);
  return out;
}

void TokenTrace::add(TokenProbability token) {
  const size_t begin = written_;
  written_ += token.piece.size();
  held_.emplace_back(begin, std::move(token));
}

std::vector<TokenProbability> TokenTrace::shown(size_t bytes) {
  shown_ += bytes;
  std::vector<TokenProbability> out;
  while (!held_.empty() && held_.front().first < shown_) {
    out.push_back(std::move(held_.front().second));
    held_.pop_front();
  }
  return out;
}

std::vector<TokenProbability> TokenTrace::rest() {
  std::vector<TokenProbability> out;
  for (auto& [begin, token] : held_) out.push_back(std::move(token));
  held_.clear();
  return out;
}

}  // namespace tierkv::serve
