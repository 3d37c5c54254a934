// grammar.h — what a text must look like, in llama.cpp's notation (GBNF), for a sampler that picks only what fits.
//
// libllama parses and applies it, after check_grammar() (grammar_check.h).
//
// Errors:  Error, bad_input, with the line and what is wrong.
// Threads: any number at a time; it does not change.
#pragma once

#include <llama.h>

#include <memory>
#include <string>

namespace tierkv::engine {

class Grammar {
 public:
  using Sampler = std::unique_ptr<llama_sampler, decltype(&llama_sampler_free)>;

  Grammar(const std::string& text, const llama_vocab* vocab);
  // A sampler of libllama's that stands at the beginning of the text.
  Sampler start() const { return {llama_sampler_clone(pattern_.get()), llama_sampler_free}; }

 private:
  Sampler pattern_;
};

}  // namespace tierkv::engine
