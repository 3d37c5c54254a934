#include "base/arena_vector.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tierkv {
namespace {

TEST(ArenaVector, BehavesLikeAVector) {
  Arena arena;
  ArenaVector<uint32_t> v;
  std::vector<uint32_t> reference;
  std::mt19937 rng(11);
  for (int step = 0; step < 5000; ++step) {
    switch (rng() % 8) {
      case 0: {
        const size_t first = reference.empty() ? 0 : rng() % reference.size();
        const size_t count = reference.empty() ? 0 : rng() % (reference.size() - first + 1) % 9;
        v.erase(first, count);
        reference.erase(reference.begin() + static_cast<ptrdiff_t>(first),
                        reference.begin() + static_cast<ptrdiff_t>(first + count));
        break;
      }
      case 1: {
        const size_t keep = reference.size() - reference.size() / 4;
        v.resize_down(keep);
        reference.resize(keep);
        break;
      }
      default: {
        // Pushing an element of itself must survive the move of the storage.
        const uint32_t x = rng();
        ASSERT_TRUE(reference.empty() || rng() % 4 ? v.push_back(arena, x) : v.push_back(arena, v[0]));
        reference.push_back(v.back());
      }
    }
    ASSERT_EQ(v.size(), reference.size());
    ASSERT_TRUE(std::equal(reference.begin(), reference.end(), v.begin()));
    ASSERT_EQ(arena.allocated(MemoryTag::bookkeeping), v.storage_bytes());
  }
  v.reset(arena);
  EXPECT_EQ(arena.allocated(MemoryTag::bookkeeping), 0u);
}

TEST(ArenaVector, ClonesAndSwaps) {
  Arena arena;
  ArenaVector<int> a, b;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(a.push_back(arena, i));
  ASSERT_TRUE(b.clone_from(arena, a));
  a[5] = -1;
  EXPECT_EQ(b[5], 5);
  a.swap(b);
  EXPECT_EQ(a[5], 5);
  EXPECT_EQ(b[5], -1);
  a.reset(arena);
  b.reset(arena);
}

TEST(ArenaVector, RefusedGrowthKeepsWhatThereIs) {
  Arena arena(16 << 10);
  ArenaVector<uint64_t> v;
  while (v.push_back(arena, v.size())) {
  }
  const size_t n = v.size();
  EXPECT_GT(n, 100u);
  for (size_t i = 0; i < n; ++i) EXPECT_EQ(v[i], i);
  EXPECT_FALSE(v.reserve(arena, 1 << 20));
  EXPECT_EQ(v.size(), n);
  v.reset(arena);
}

}  // namespace
}  // namespace tierkv
