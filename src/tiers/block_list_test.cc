#include "tiers/block_list.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

namespace tierkv::tiers {
namespace {

TEST(Version, EqualNumbersAreOfOneStateOfOneThing) {
  Version a, b;
  const uint64_t first = a.number();
  EXPECT_NE(first, 0u);
  EXPECT_EQ(a.number(), first);
  EXPECT_NE(b.number(), first);
  a.may_change();
  EXPECT_NE(a.number(), first);
  EXPECT_NE(a.number(), b.number());
}

TEST(Version, SaysWhatStayedAtTheFrontFromOneNumberToTheNext) {
  Version version;
  EXPECT_EQ(version.step().before, 0u);  // there was none
  const uint64_t first = version.number();
  EXPECT_EQ(version.step().before, 0u);  // nothing changed
  version.may_change_from(7);
  version.may_change_from(3);
  version.may_change_from(5);
  const Version::Step step = version.step();
  EXPECT_EQ(step.before, first);
  EXPECT_EQ(step.same, 3u);
  EXPECT_EQ(version.number(), step.number);
  version.may_change_from(size_t{1} << 40);
  EXPECT_LT(version.step().same, 1u << 20);  // more than it can say
  version.may_change();
  EXPECT_EQ(version.step().same, 0u);
}

TEST(BlockList, WhatIsBeforeAChangeStayed) {
  Arena arena(0);
  BlockList list;
  ASSERT_TRUE(list.reserve(arena, 16));
  for (int i = 0; i < 8; ++i) list.push_reserved(BlockRef());
  const std::pair<std::function<void()>, uint32_t> changes[] = {
      {[&] { list.push_reserved(BlockRef()); }, 8},
      {[&] { (void)list[4]; }, 4},
      {[&] { (void)list.back(); }, 8},
      {[&] { EXPECT_TRUE(list.reserve(arena, 40)); }, 9},
      {[&] { list.erase(5, 2); }, 5},
      {[&] { list.resize_down(6); }, 6},
      {[&] { (void)list[5], list.push_reserved(BlockRef()); }, 5},
      {[&] { (void)list.begin(); }, 0},
  };
  for (const auto& [change, same] : changes) {
    const uint64_t before = list.version();
    change();
    const Version::Step step = list.step();
    EXPECT_EQ(step.before, before);
    EXPECT_EQ(step.same, same);
  }
  list.reset(arena);
}

TEST(BlockList, LookingKeepsItsVersionAndEverythingElseChangesIt) {
  Arena arena(0);
  BlockList list, other;
  ASSERT_TRUE(list.reserve(arena, 8));
  for (int i = 0; i < 4; ++i) list.push_reserved(BlockRef());
  const uint64_t version = list.version();
  const BlockList& look = list;
  for (const BlockRef& ref : look) EXPECT_EQ(ref.rows, 0);
  (void)look[1], (void)look.back(), (void)look.size(), (void)look.empty(), (void)look.storage_bytes();
  EXPECT_EQ(list.version(), version);
  list.erase(0, 0);
  EXPECT_EQ(list.version(), version);
  const std::pair<std::string, std::function<void()>> changes[] = {
      {"element", [&] { (void)list[0]; }},
      {"back", [&] { (void)list.back(); }},
      {"loop",
       [&] {
         for (BlockRef& ref : list) (void)ref;
       }},
      {"reserve", [&] { EXPECT_TRUE(list.reserve(arena, 100)); }},
      {"push_back", [&] { EXPECT_TRUE(list.push_back(arena, BlockRef(), Arena::Use::normal)); }},
      {"push_reserved", [&] { list.push_reserved(BlockRef()); }},
      {"erase", [&] { list.erase(0, 1); }},
      {"resize_down", [&] { list.resize_down(2); }},
      {"swap", [&] { list.swap(other); }},
      {"reset", [&] { list.reset(arena); }},
  };
  for (const auto& [name, change] : changes) {
    const uint64_t before = list.version();
    change();
    EXPECT_NE(list.version(), before) << name;
  }
  other.reset(arena);
}

}  // namespace
}  // namespace tierkv::tiers
