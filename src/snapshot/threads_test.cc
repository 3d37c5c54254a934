// Threads: sequences of one cache are frozen, thawed and used at the same time, also the same one.
#include <gtest/gtest.h>

#include <thread>

#include "snapshot/testing.h"

namespace tierkv::snapshot {
namespace {

using namespace tierkv::snapshot::testing;

TEST(SnapshotThreads, FreezingAndThawingDisturbNobody) {
  auto cache = make_cache(small_config("compact"));
  std::mt19937 rng(1);
  const SeqId shared = cache->add_sequence().value();
  append(*cache, shared, rng, 300);
  const Bytes bytes = frozen(*cache, shared);
  const SeqId growing = cache->unfreeze(bytes).value();

  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 6; ++i) {
        EXPECT_EQ(frozen(*cache, shared), bytes);
        const auto copy = cache->unfreeze(bytes);
        ASSERT_TRUE(copy.ok()) << copy.status().to_string();
        std::mt19937 own(t);
        append(*cache, *copy, own, 20);
        ASSERT_TRUE(cache->remove(*copy).ok());
        // One that another thread appends to: whatever length it has, its snapshot is whole.
        const auto moving = cache->unfreeze(frozen(*cache, growing));
        ASSERT_TRUE(moving.ok()) << moving.status().to_string();
        ASSERT_TRUE(cache->remove(*moving).ok());
        if (t == 0) append(*cache, growing, own, 30);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache->length(growing).value(), 300u + 6 * 30);
  EXPECT_EQ(cache->sequences().size(), 2u);
}

}  // namespace
}  // namespace tierkv::snapshot
