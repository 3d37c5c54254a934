// recall_text.h — what `tierkv recall` hides and where: haystacks, pass keys, named numbers, and how an answer is judged.
//
// Everything depends on the seed alone.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace tierkv::cli {

// About `words` words of English prose without digits, in paragraphs; no sentence says anything about keys or numbers.
std::string generate_prose(size_t words, uint32_t seed);

// A sentence to hide, and how to ask for it: the answer is a number of five digits.
struct Needle {
  std::string text;
  std::string question;  // ends where the answer begins
  std::string answer;
};
Needle make_passkey(std::mt19937& random);
// As many as asked, with different names and different numbers. At most 400.
std::vector<Needle> make_lines(size_t count, std::mt19937& random);

extern const char* const kPasskeyIntroduction;
extern const char* const kLinesIntroduction;

// Whether the first number in the text is the answer, digit for digit.
bool answers(const std::string& generated, const std::string& answer);

}  // namespace tierkv::cli
