// recall_text_test.cc — needles, and how answers are judged.
#include "recall_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace tierkv::cli {
namespace {

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

TEST(RecallText, ANumberIsCutWhereItEnds) {
  EXPECT_EQ(until_number_ends(" 12345. Remember"), " 12345");
  EXPECT_EQ(until_number_ends(" not 12345"), " not 12345");
  EXPECT_EQ(until_number_ends(" a special character"), " a special character");
}

TEST(RecallText, SentencesToQuoteHave20To35Words) {
  std::mt19937 random(3);
  for (int i = 0; i < 500; ++i) {
    for (const std::string& sentence : quote_sentences(5, random)) {
      EXPECT_GE(split_words(sentence).size(), 20u) << sentence;
      EXPECT_LE(split_words(sentence).size(), 35u) << sentence;
      EXPECT_EQ(sentence.find_first_of("{}"), std::string::npos) << sentence;
    }
  }
}

TEST(RecallText, QuotesAreToldApartByWhatTheQuestionGives) {
  std::mt19937 random(1);
  std::set<std::string> questions;
  const std::vector<Needle> quotes = make_quotes(10, random);
  ASSERT_EQ(quotes.size(), 5u);
  for (const Needle& needle : quotes) {
    questions.insert(needle.question);
    const std::string given = needle.question.substr(needle.question.find('"') + 1);
    EXPECT_EQ(split_words(given).size(), 4u);
    EXPECT_NE(needle.text.find("\"" + given + " " + needle.answer + ".\""), std::string::npos);
    EXPECT_EQ(leading_words(" " + needle.answer, needle.answer), split_words(needle.answer).size());
  }
  EXPECT_EQ(questions.size(), 5u);
}

TEST(RecallText, LeadingWordsEndAtTheFirstDifference) {
  const std::string answer = "the heavy bell across the square";
  EXPECT_EQ(leading_words(" the heavy bell across the square.\"", answer), 6u);
  EXPECT_EQ(leading_words(" the heavy bell across the square", answer), 6u);
  EXPECT_EQ(leading_words(" the heavy bell across the squares", answer), 5u);
  EXPECT_EQ(leading_words(" the heavy bells across the square", answer), 2u);
  EXPECT_EQ(leading_words(" The heavy bell", answer), 0u);
  EXPECT_EQ(leading_words(" the heavy, bell", answer), 1u);
  EXPECT_EQ(leading_words("", answer), 0u);
}

}  // namespace
}  // namespace tierkv::cli
