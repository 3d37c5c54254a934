// recall_kinds.h — generated texts to hide things in, one grammar a kind.
//
// Everything depends on the seed alone. No text says anything about keys, notes or sentences to remember, and none has a number of
// five digits: what is hidden is there once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tierkv::cli {

// prose, code, dialogue, dictionary, table.
const std::vector<std::string>& text_kinds();

// At least `words` words of one kind; a longer text of the same seed starts the same. Empty for a kind that is not known.
std::string generate_text(const std::string& kind, size_t words, uint32_t seed);

}  // namespace tierkv::cli
