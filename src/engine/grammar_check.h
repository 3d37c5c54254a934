// grammar_check.h — looks a grammar through that comes from strangers, before libllama gets it: that would print a text which it
// cannot parse on stderr, takes any number of repetitions, and never ends on some rules that begin with themselves.
//
// Bounds:  64 KiB of text, 2,000 rules, groups 32 deep, 20,000 repetitions in all.
// Errors:  Error, bad_input, with the line and what is wrong.
// Threads: any number at a time.
#pragma once

#include <string>

namespace tierkv::engine {

// Refuses what is no grammar, has no rule `root`, names a rule that is not there, may begin with itself, or is out of bounds.
// Tokens by number or name (<[7]>, <think>) are not taken.
void check_grammar(const std::string& text);

// Any JSON object.
extern const char* const kJsonGrammar;

}  // namespace tierkv::engine
