#include "base/text.h"

#include <gtest/gtest.h>

#include <vector>

namespace tierkv {
namespace {

TEST(Text, QuotedEscapesWhatATerminalWouldObey) {
  EXPECT_EQ(quote("hot"), "'hot'");
  EXPECT_EQ(quote("a\x1b[2Jb\n"), "'a\\x1b[2Jb\\x0a'");
  EXPECT_EQ(quote("caf\xC3\xA9"), "'caf\xC3\xA9'");
  EXPECT_EQ(quote("\xC3("), "'\\xc3('");
  EXPECT_EQ(quote("\xC2\x9B"), "'\\xc2\\x9b'");  // a C1 control sequence introducer
  EXPECT_LE(quote(std::string(1000, 'x')).size(), 90u);
}

TEST(Text, Utf8IsCheckedStrictly) {
  EXPECT_TRUE(valid_utf8(""));
  EXPECT_TRUE(valid_utf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"));
  for (const char* bad :
       {"\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82", "\x80", "\xFF", "\xE0\x80\x80", "\xF0\x80\x80\x80"})
    EXPECT_FALSE(valid_utf8(bad)) << quote(bad);
}

TEST(Text, EditDistanceCountsASwapOnce) {
  EXPECT_EQ(edit_distance("hot", "hot"), 0);
  EXPECT_EQ(edit_distance("hto", "hot"), 1);
  EXPECT_EQ(edit_distance("archve", "archive"), 1);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance(std::string(65, 'a'), std::string(65, 'a')), 64);
}

TEST(Text, NearestFindsTyposAndNothingFarther) {
  const std::vector<std::string> names = {"hot", "warm", "archive"};
  EXPECT_EQ(nearest("hto", names), 0);
  EXPECT_EQ(nearest("archve", names), 2);
  EXPECT_EQ(nearest("wram", names), 1);
  EXPECT_EQ(nearest("budget", names), -1);
  EXPECT_EQ(nearest("", names), -1);
}

}  // namespace
}  // namespace tierkv
