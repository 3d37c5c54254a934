#include "serve/reuse.h"

#include <gtest/gtest.h>

namespace tierkv::serve {
namespace {

// A sequence of 2,000 tokens as `balanced` keeps it: 100 rows in the tail, 448 warm, the rest archived.
const TierBounds kBounds{1900, 1452, 64, 448};

TEST(Reuse, PrefixesEndWhereTheTextsDiffer) {
  const Tokens a = {1, 2, 3, 4}, b = {1, 2, 9}, none;
  EXPECT_EQ(common_prefix(a, b), 2u);
  EXPECT_EQ(common_prefix(a, a), 4u);
  EXPECT_EQ(common_prefix(a, none), 0u);
  EXPECT_EQ(common_prefix(b, Tokens{7}), 0u);
}

TEST(Reuse, AWholeSequenceStaysWhole) { EXPECT_EQ(reusable(2000, 2000, kBounds), 2000u); }

TEST(Reuse, ACutInTheTailCostsNothingWhileMostOfItIsLeft) {
  EXPECT_EQ(reusable(1999, 2000, kBounds), 1999u);
  EXPECT_EQ(reusable(1948, 2000, kBounds), 1948u);
  EXPECT_EQ(reusable(1947, 2000, kBounds), 1947u - 64);
}

TEST(Reuse, ACutInTheWarmTierReadsTheHotTierAgain) {
  EXPECT_EQ(reusable(1800, 2000, kBounds), 1800u - 64);
  EXPECT_EQ(reusable(1452, 2000, kBounds), 1452u - 64);
}

TEST(Reuse, ACutInTheArchiveReadsBothRecentTiersAgain) {
  EXPECT_EQ(reusable(1451, 2000, kBounds), 1451u - 512);
  EXPECT_EQ(reusable(513, 2000, kBounds), 1u);
  EXPECT_EQ(reusable(512, 2000, kBounds), 0u);
  EXPECT_EQ(reusable(3, 2000, kBounds), 0u);
}

TEST(Reuse, WhereNothingHasBeenCodedEveryCutIsFree) {
  EXPECT_EQ(reusable(5, 90, {0, 0, 64, 448}), 5u);
  EXPECT_EQ(reusable(700, 9000, {0, 0, 0, 0}), 700u);  // FP16 throughout
}

}  // namespace
}  // namespace tierkv::serve
