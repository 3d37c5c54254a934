#include "engine/stop_strings.h"

#include <gtest/gtest.h>

namespace tierkv::engine {
namespace {

// What is shown of a text that comes in pieces of `size` bytes.
std::string shown(StopStrings& stops, const std::string& text, size_t size) {
  std::string out;
  for (size_t at = 0; at < text.size() && !stops.hit(); at += size) out += stops.add(text.substr(at, size));
  return out + stops.rest();
}

TEST(StopStrings, TheTextEndsBeforeTheFirstOfThemWhateverThePieces) {
  for (size_t size = 1; size < 20; ++size) {
    StopStrings stops({"User:", "\n\n"});
    EXPECT_EQ(shown(stops, "one\nUse User: two\n\nthree", size), "one\nUse ") << size;
    EXPECT_TRUE(stops.hit());
    EXPECT_EQ(stops.add("more"), "");
  }
}

TEST(StopStrings, ABeginningIsHeldBackAndGivenOutWhenItWasNone) {
  StopStrings stops({"abab"});
  EXPECT_EQ(stops.add("xaba"), "x");
  EXPECT_EQ(stops.add("c"), "abac");
  EXPECT_EQ(stops.add("ab"), "");
  EXPECT_EQ(stops.rest(), "ab");
  EXPECT_FALSE(stops.hit());
}

TEST(StopStrings, WithoutAnyEverythingPasses) {
  StopStrings stops({"", ""});
  EXPECT_EQ(shown(stops, "all of it", 2), "all of it");
  EXPECT_FALSE(stops.hit());
}

}  // namespace
}  // namespace tierkv::engine
