// Books of a device's memory: which copies of blocks stay, and where areas of descriptors lie.
#include "cuda/standing.h"

#include <gtest/gtest.h>

#include <random>

namespace tierkv::cuda {
namespace {

// Slabs that nobody reads.
Places::MoreMemory memory(uint64_t slabs = UINT64_MAX) {
  return [left = slabs, next = uintptr_t{1} << 40](size_t bytes) mutable -> Result<uint8_t*> {
    if (left == 0) return error(StatusCode::resource_exhausted, "no more");
    --left;
    return reinterpret_cast<uint8_t*>(next += bytes);
  };
}

constexpr size_t kMiB = size_t{1} << 20;

TEST(Places, ABlockIsFoundByItsChecksumAndItsBytes) {
  Places places(0, memory());
  places.begin_call();
  Places::Entry* const there = *places.add(7, 1000, 500);
  EXPECT_EQ(there->values - there->keys, 1024);
  EXPECT_EQ(places.find(7, 1000, 500), there);
  EXPECT_EQ(places.find(8, 1000, 500), nullptr);
  EXPECT_EQ(places.find(7, 4000, 500), nullptr);
}

TEST(Places, TheLongestUnusedGoFirstAndTheCallsOwnStay) {
  Places places(32 * kMiB, memory());
  for (uint64_t block = 1; block <= 4; ++block) {
    places.begin_call();
    ASSERT_TRUE(places.add(block, 4 * kMiB, 4 * kMiB).ok());
  }
  places.begin_call();
  EXPECT_NE(places.find(1, 4 * kMiB, 4 * kMiB), nullptr);
  ASSERT_TRUE(places.add(5, 4 * kMiB, 4 * kMiB).ok());
  EXPECT_EQ(places.find(2, 4 * kMiB, 4 * kMiB), nullptr);
  for (const uint64_t block : {3, 4}) EXPECT_NE(places.find(block, 4 * kMiB, 4 * kMiB), nullptr);
  const auto refused = places.add(6, 4 * kMiB, 4 * kMiB);
  EXPECT_EQ(refused.status().code(), StatusCode::resource_exhausted);
  EXPECT_EQ(places.blocks(), 4u);
}

TEST(Places, WhatIsHeldStaysUntilItIsLetGo) {
  Places places(0, memory(1));
  places.begin_call();
  std::vector<Places::Entry*> held;
  for (uint64_t block = 1; block <= 4; ++block) {
    held.push_back(*places.add(block, 4 * kMiB, 4 * kMiB));
    places.hold(held.back());
  }
  places.hold(held[2]);
  places.begin_call();
  EXPECT_EQ(places.add(5, 4 * kMiB, 4 * kMiB).status().code(), StatusCode::resource_exhausted);
  places.let_go(held[2]);
  EXPECT_EQ(places.add(5, 4 * kMiB, 4 * kMiB).status().code(), StatusCode::resource_exhausted);
  places.let_go(held[2]);
  const auto fresh = places.add(5, 4 * kMiB, 4 * kMiB);
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ(places.find(3, 4 * kMiB, 4 * kMiB), nullptr);
  EXPECT_EQ(places.find(1, 4 * kMiB, 4 * kMiB), held[0]);
}

TEST(AreaRoom, AreasNeverOverlapAndWhatIsGivenBackIsUsedAgain) {
  std::mt19937 rng(3);
  AreaRoom room;
  std::vector<uint8_t> taken;
  std::vector<std::pair<uint32_t, uint32_t>> areas;
  for (int i = 0; i < 4000; ++i) {
    if (!areas.empty() && rng() % 2) {
      const size_t which = rng() % areas.size();
      const auto [first, views] = areas[which];
      for (uint32_t v = first; v < first + views; ++v) taken[v] = 0;
      room.give(first, views);
      areas.erase(areas.begin() + static_cast<ptrdiff_t>(which));
      continue;
    }
    const uint32_t views = 1 + rng() % 50;
    uint32_t first = room.take(views);
    if (first == UINT32_MAX) {
      room.grow(views + rng() % 100);
      taken.resize(room.size());
      first = room.take(views);
    }
    ASSERT_LE(first + views, room.size());
    for (uint32_t v = first; v < first + views; ++v) {
      ASSERT_FALSE(taken[v]) << "step " << i;
      taken[v] = 1;
    }
    areas.emplace_back(first, views);
  }
  for (const auto& [first, views] : areas) room.give(first, views);
  EXPECT_EQ(room.take(room.size()), 0u);  // one piece again
}

}  // namespace
}  // namespace tierkv::cuda
