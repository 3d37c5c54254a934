// recall_kinds_test.cc — generated texts: each kind has what it says.
#include "recall_kinds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <regex>
#include <set>
#include <sstream>

namespace tierkv::cli {
namespace {

double share(const std::string& text, int (*is)(int)) {
  const auto count = std::count_if(text.begin(), text.end(), [&](char c) { return is(static_cast<unsigned char>(c)) != 0; });
  return static_cast<double>(count) / static_cast<double>(text.size());
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

// How many lines are of a form.
double share_of_lines(const std::string& text, const char* form) {
  const std::vector<std::string> lines = lines_of(text);
  const std::regex pattern(form);
  const auto count =
      std::count_if(lines.begin(), lines.end(), [&](const std::string& line) { return std::regex_match(line, pattern); });
  return static_cast<double>(count) / static_cast<double>(lines.size());
}

TEST(RecallKinds, EveryTextDependsOnTheSeedAlone) {
  ASSERT_EQ(text_kinds().size(), 5u);
  std::set<std::string> texts;
  for (const std::string& kind : text_kinds()) {
    const std::string text = generate_text(kind, 2000, 1);
    EXPECT_EQ(text, generate_text(kind, 2000, 1)) << kind;
    EXPECT_NE(text, generate_text(kind, 2000, 2)) << kind;
    EXPECT_GE(std::count_if(text.begin(), text.end(), [](char c) { return c == ' ' || c == '\n'; }), 2000) << kind;
    texts.insert(text);
  }
  EXPECT_EQ(texts.size(), 5u);
}

TEST(RecallKinds, LongerTextsStartTheSame) {
  for (const std::string& kind : text_kinds()) {
    const std::string shorter = generate_text(kind, 100, 5), longer = generate_text(kind, 1000, 5);
    EXPECT_EQ(longer.substr(0, shorter.size()), shorter) << kind;
  }
}

TEST(RecallKinds, NoTextHasAPassKeyNorAPlaceLeftToFill) {
  const std::regex five("[0-9]{5}");
  for (const std::string& kind : text_kinds()) {
    const std::string text = generate_text(kind, 5000, 7);
    EXPECT_FALSE(std::regex_search(text, five)) << kind;
    EXPECT_FALSE(std::regex_search(text, std::regex("\\{[A-Za-z0-9]\\}"))) << kind;
    for (const char* word : {"pass key", "Remember", "Note:"}) EXPECT_EQ(text.find(word), std::string::npos) << kind << " " << word;
  }
}

TEST(RecallKinds, ProseIsSentences) {
  const std::string text = generate_text("prose", 3000, 3);
  EXPECT_EQ(share(text, std::isdigit), 0.0);
  EXPECT_LT(share(text, std::ispunct), 0.05);
  EXPECT_EQ(share_of_lines(text, "([A-Z][^.]*\\. ?)+"), 1.0);
}

TEST(RecallKinds, CodeHasBalancedBracketsAndStatements) {
  const std::string text = generate_text("code", 3000, 3);
  for (const char* pair : {"()", "{}", "[]"})
    EXPECT_EQ(std::count(text.begin(), text.end(), pair[0]), std::count(text.begin(), text.end(), pair[1])) << pair;
  EXPECT_GT(share(text, std::ispunct), 0.12);
  EXPECT_GT(share_of_lines(text, "  .*;.*"), 0.4);
}

TEST(RecallKinds, DialogueIsLinesOfSpeakers) { EXPECT_EQ(share_of_lines(generate_text("dialogue", 3000, 3), "[A-Z]+: .+"), 1.0); }

TEST(RecallKinds, ADictionaryIsWordsAndTheirMeanings) {
  EXPECT_EQ(share_of_lines(generate_text("dictionary", 3000, 3), "[a-z]+ \\([a-z, ]+\\): .+; also, .+\\. \".+\".*"), 1.0);
}

TEST(RecallKinds, ATableIsNumbers) {
  const std::string text = generate_text("table", 3000, 3);
  EXPECT_GT(share(text, std::isdigit), 0.4);
  EXPECT_GT(share_of_lines(text, "[0-9]+(, [0-9.]+){5}"), 0.85);
}

TEST(RecallKinds, AKindThatIsNotKnownIsEmpty) { EXPECT_EQ(generate_text("poems", 100, 1), ""); }

}  // namespace
}  // namespace tierkv::cli
