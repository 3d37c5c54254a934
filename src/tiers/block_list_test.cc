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
