// recall_answer.cc — masks and probabilities.
#include "recall_answer.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tierkv::cli {
namespace {

constexpr const char* kDigits = "0123456789";

// A space or none, then digits and nothing else. The number of digits, or none where it is something else.
constexpr size_t kNotANumber = static_cast<size_t>(-1);
size_t digits_of(const std::string& text) {
  const size_t first = !text.empty() && text[0] == ' ' ? 1 : 0;
  return text.find_first_not_of(kDigits, first) == std::string::npos ? text.size() - first : kNotANumber;
}

}  // namespace

DigitMask::DigitMask(const std::vector<std::string>& pieces) {
  for (size_t i = 0; i < pieces.size(); ++i) add(static_cast<llama_token>(i), pieces[i]);
}

DigitMask::DigitMask(const Tokenizer& tokenizer) {
  for (uint32_t i = 0; i < tokenizer.size(); ++i) {
    const llama_token token = static_cast<llama_token>(i);
    if (!tokenizer.is_end(token)) add(token, tokenizer.piece(token));
  }
}

void DigitMask::add(llama_token token, std::string piece) {
  if (!piece.empty() && digits_of(piece) != kNotANumber) candidates_.emplace_back(token, std::move(piece));
}

std::vector<llama_token> DigitMask::allowed(const std::string& said, size_t digits) const {
  std::vector<llama_token> tokens;
  if (digits_of(said) == digits) return tokens;
  for (const auto& [token, piece] : candidates_) {
    if (digits_of(said + piece) <= digits) tokens.push_back(token);  // kNotANumber is larger than any
  }
  return tokens;
}

llama_token likeliest(std::span<const float> logits) {
  return static_cast<llama_token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

llama_token likeliest(std::span<const float> logits, std::span<const llama_token> of) {
  return *std::max_element(of.begin(), of.end(), [&](llama_token a, llama_token b) {
    return logits[static_cast<size_t>(a)] < logits[static_cast<size_t>(b)];
  });
}

double log_probability(std::span<const float> logits, llama_token token) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return logits[static_cast<size_t>(token)] - top - std::log(sum);
}

double log_probability(std::span<const float> logits, llama_token token, std::span<const llama_token> of) {
  if (std::find(of.begin(), of.end(), token) == of.end()) return -std::numeric_limits<double>::infinity();
  const double top = logits[static_cast<size_t>(likeliest(logits, of))];
  double sum = 0.0;
  for (const llama_token other : of) sum += std::exp(logits[static_cast<size_t>(other)] - top);
  return logits[static_cast<size_t>(token)] - top - std::log(sum);
}

}  // namespace tierkv::cli
