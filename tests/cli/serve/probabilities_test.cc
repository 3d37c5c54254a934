#include "serve/probabilities.h"

#include <gtest/gtest.h>

namespace tierkv::serve {
namespace {

TokenProbability token(const std::string& piece) {
  TokenProbability one;
  one.piece = piece;
  return one;
}

std::string text(const std::vector<TokenProbability>& tokens) {
  std::string out;
  for (const TokenProbability& one : tokens) out += one.piece + "|";
  return out;
}

TEST(TokenTrace, TokensComeWithTheTextTheyBegin) {
  TokenTrace trace;
  trace.add(token("ab"));
  EXPECT_EQ(text(trace.shown(0)), "");
  EXPECT_EQ(text(trace.shown(1)), "ab|");  // half of it is held back
  trace.add(token("cd"));
  EXPECT_EQ(text(trace.shown(1)), "");
  EXPECT_EQ(text(trace.shown(2)), "cd|");
}

TEST(TokenTrace, WhatIsCutOffKeepsItsTokens) {
  TokenTrace trace;
  for (const char* piece : {"a", "st", "op"}) trace.add(token(piece));
  EXPECT_EQ(text(trace.shown(1)), "a|");
  EXPECT_EQ(text(trace.shown(0)), "");
}

TEST(TokenTrace, TheRestIsAllThatIsLeft) {
  TokenTrace trace;
  for (const char* piece : {"a", "", "b"}) trace.add(token(piece));
  EXPECT_EQ(text(trace.shown(1)), "a|");
  EXPECT_EQ(text(trace.rest()), "|b|");
  EXPECT_EQ(text(trace.rest()), "");
}

}  // namespace
}  // namespace tierkv::serve
