// tokenizer.h — text to a model's tokens and back.
//
// Threads: any number at a time; it holds nothing but the model's vocabulary, which must outlive it.
#pragma once

#include <llama.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tierkv::engine {

using Tokens = std::vector<llama_token>;

class Tokenizer {
 public:
  explicit Tokenizer(const llama_vocab* vocab) : vocab_(vocab) {}

  // add_special: the model's first token, where it was trained with one. parse_special: "<|im_end|>" is a token, not its letters.
  // Error, bad_input, for a text longer than a gibibyte.
  Tokens encode(const std::string& text, bool add_special, bool parse_special = false) const;
  // The bytes of one token, which may end within a character (Utf8Joiner).
  std::string piece(llama_token token) const;
  std::string decode(std::span<const llama_token> tokens) const;

  uint32_t size() const { return static_cast<uint32_t>(llama_vocab_n_tokens(vocab_)); }
  bool is_end(llama_token token) const { return llama_vocab_is_eog(vocab_, token); }
  // The token every text starts with, or LLAMA_TOKEN_NULL when the model was not trained with one.
  llama_token first_token() const;

 private:
  const llama_vocab* vocab_;
};

}  // namespace tierkv::engine
