#include "policy/select.h"

#include <gtest/gtest.h>

namespace tierkv::policy {
namespace {

TEST(RecentToProtect, TheConfiguredOnesAreAtMostHalfTheBudget) {
  EXPECT_EQ(recent_to_protect(32, 0, 400, 4), 32u);
  EXPECT_EQ(recent_to_protect(32, 0, 64, 4), 32u);
  EXPECT_EQ(recent_to_protect(32, 0, 40, 0), 20u);
  EXPECT_EQ(recent_to_protect(1u << 30, 0, 100, 4), 50u);
}

TEST(RecentToProtect, UnobservedOnesStretchItToThreeQuartersOfWhatTheSinksLeave) {
  EXPECT_EQ(recent_to_protect(32, 50, 400, 4), 50u);
  EXPECT_EQ(recent_to_protect(32, 100, 44, 4), 30u);
  EXPECT_EQ(recent_to_protect(32, 100, 1u << 30, 0), 100u);
}

TEST(RecentToProtect, SinksComeFirstAndTheNewestTokenAlwaysStays) {
  EXPECT_EQ(recent_to_protect(32, 0, 20, 16), 3u);
  EXPECT_EQ(recent_to_protect(0, 0, 100, 4), 1u);
  EXPECT_EQ(recent_to_protect(8, 8, 5, 4), 1u);
  EXPECT_EQ(recent_to_protect(8, 8, 4, 9), 1u);
}

}  // namespace
}  // namespace tierkv::policy
