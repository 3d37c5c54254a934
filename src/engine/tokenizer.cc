// tokenizer.cc — libllama's tokenizer with buffers that fit.
#include "engine/tokenizer.h"

#include <algorithm>

#include "engine/error.h"

namespace tierkv::engine {

Tokens Tokenizer::encode(const std::string& text, bool add_special, bool parse_special) const {
  if (text.size() > (1u << 30)) bad_input("the text is longer than a gibibyte");
  Tokens tokens(text.size() + 8);
  auto run = [&] {
    return llama_tokenize(vocab_, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                          static_cast<int32_t>(tokens.size()), add_special, parse_special);
  };
  int32_t count = run();
  if (count < 0) {
    tokens.resize(static_cast<size_t>(-count));
    count = run();
  }
  tokens.resize(static_cast<size_t>(std::max(0, count)));
  return tokens;
}

std::string Tokenizer::piece(llama_token token) const {
  std::string text(64, '\0');
  int32_t size = llama_token_to_piece(vocab_, token, text.data(), static_cast<int32_t>(text.size()), 0, false);
  if (size < 0) {
    text.resize(static_cast<size_t>(-size));
    size = llama_token_to_piece(vocab_, token, text.data(), static_cast<int32_t>(text.size()), 0, false);
  }
  text.resize(static_cast<size_t>(std::max(0, size)));
  return text;
}

std::string Tokenizer::decode(std::span<const llama_token> tokens) const {
  std::string text;
  for (const llama_token token : tokens) text += piece(token);
  return text;
}

llama_token Tokenizer::first_token() const { return llama_vocab_get_add_bos(vocab_) ? llama_vocab_bos(vocab_) : LLAMA_TOKEN_NULL; }

}  // namespace tierkv::engine
