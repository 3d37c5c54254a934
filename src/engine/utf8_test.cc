#include "engine/utf8.h"

#include <gtest/gtest.h>

#include "engine/text.h"

namespace tierkv::engine {
namespace {

TEST(Utf8Joiner, GivesWholeCharactersOnly) {
  const std::string text = "a\u00e9\u20ac\U0001F600z";
  for (size_t cut = 1; cut < text.size(); ++cut) {
    Utf8Joiner joiner;
    std::string said;
    for (size_t at = 0; at < text.size(); at += cut) {
      const std::string ready = joiner.add(text.substr(at, cut));
      said += ready;
      // What comes next does not start in the middle of a character.
      if (said.size() == text.size()) continue;
      EXPECT_NE(static_cast<unsigned char>(text[said.size()]) & 0xC0, 0x80) << cut;
    }
    EXPECT_EQ(said + joiner.rest(), text) << cut;
  }
}

TEST(Utf8Joiner, BytesThatAreNoUtf8ComeOutInTheEnd) {
  Utf8Joiner joiner;
  std::string said = joiner.add("\x80\x80\x80\x80\x80");
  said += joiner.add("x");
  EXPECT_EQ(said + joiner.rest(), "\x80\x80\x80\x80\x80x");
  EXPECT_EQ(joiner.add("\xF0\x9F"), "");
  EXPECT_EQ(joiner.rest(), "\xF0\x9F");
}

TEST(Text, ThousandsHaveCommas) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(1000), "1,000");
  EXPECT_EQ(human_count(1234567), "1,234,567");
  EXPECT_EQ(format("%d of %s", 3, "four"), "3 of four");
}

}  // namespace
}  // namespace tierkv::engine
