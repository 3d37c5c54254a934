// recall_text.h — what `tierkv recall` hides: pass keys, named numbers, sentences; and how what was said is judged.
//
// Everything depends on the seed alone.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace tierkv::cli {

// Something to hide, and how to ask for it.
struct Needle {
  std::string text;
  std::string question;  // ends where " " and the answer continue it
  std::string answer;    // a number of five digits, or the rest of a sentence without its full stop
};

Needle make_passkey(std::mt19937& random);
// As many as asked, with different names and different numbers. At most 400.
std::vector<Needle> make_lines(size_t count, std::mt19937& random);
// Sentences to be copied word for word; the question gives the first four words, which differ. At most 5.
std::vector<Needle> make_quotes(size_t count, std::mt19937& random);
// 20 to 35 words each, no two built alike. At most 5.
std::vector<std::string> quote_sentences(size_t count, std::mt19937& random);

// What stands before the text, by what is hidden in it.
std::string introduction(bool passkeys, bool quotes);
extern const char* const kLinesIntroduction;

// Whether the first number in the text is the answer, digit for digit.
bool answers(const std::string& generated, const std::string& answer);
// What was said, up to the end of its first number; all of it where there is none.
std::string until_number_ends(const std::string& said);

std::vector<std::string> split_words(const std::string& text);
// Words of the answer that were said in order from the first on, letter for letter.
size_t leading_words(const std::string& said, const std::string& answer);

}  // namespace tierkv::cli
