#include "engine/grammar.h"

#include "engine/error.h"
#include "engine/grammar_check.h"

namespace tierkv::engine {

Grammar::Grammar(const std::string& text, const llama_vocab* vocab) : pattern_(nullptr, llama_sampler_free) {
  check_grammar(text);
  pattern_.reset(llama_sampler_init_grammar(vocab, text.c_str(), "root"));
  if (pattern_ == nullptr) bad_input("the grammar is not one that libllama takes: does a rule repeat what may be empty?");
}

}  // namespace tierkv::engine
