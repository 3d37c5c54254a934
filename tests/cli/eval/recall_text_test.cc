// recall_text_test.cc — haystacks and needles.
#include "recall_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace tierkv::cli {
namespace {

TEST(RecallText, ProseDependsOnTheSeedAloneAndHasNoDigits) {
  const std::string text = generate_prose(2000, 1);
  EXPECT_EQ(text, generate_prose(2000, 1));
  EXPECT_NE(text, generate_prose(2000, 2));
  EXPECT_EQ(text.find_first_of("0123456789"), std::string::npos);
  EXPECT_GE(std::count(text.begin(), text.end(), ' ') + std::count(text.begin(), text.end(), '\n'), 2000);
}

TEST(RecallText, LongerProseStartsTheSame) {
  const std::string shorter = generate_prose(100, 5), longer = generate_prose(1000, 5);
  EXPECT_EQ(longer.substr(0, shorter.size()), shorter);
}

TEST(RecallText, LinesHaveDifferentNamesAndNumbers) {
  std::mt19937 random(1);
  std::set<std::string> questions, answers;
  for (const Needle& needle : make_lines(300, random)) {
    EXPECT_NE(needle.text.find(needle.answer), std::string::npos);
    questions.insert(needle.question);
    answers.insert(needle.answer);
  }
  EXPECT_EQ(questions.size(), 300u);
  EXPECT_EQ(answers.size(), 300u);
  EXPECT_EQ(make_lines(1000, random).size(), 400u);
}

TEST(RecallText, OnlyTheWholeNumberIsAnAnswer) {
  EXPECT_TRUE(answers(" 12345.", "12345"));
  EXPECT_TRUE(answers(": **12345**", "12345"));
  EXPECT_FALSE(answers(" 123456", "12345"));
  EXPECT_FALSE(answers(" 1234", "12345"));
  EXPECT_FALSE(answers(" 99999 or 12345", "12345"));
  EXPECT_FALSE(answers("", "12345"));
}

}  // namespace
}  // namespace tierkv::cli
