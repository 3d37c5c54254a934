// Idle sequences under threads. Apart from the other tests of parking, which would take ThreadSanitizer minutes for nothing.
#include <gtest/gtest.h>

#include <thread>

#include "cache/park_testing.h"

namespace tierkv::cache {
namespace {

TEST(ParkThreads, ParkWakeAndUseSequencesSideBySide) {
  CacheConfig config = config_of(kTiers);
  config.threads = 2;
  auto cache = AdaptiveKVCache::create(config, calibration()).value();
  const SeqId base = cache->add_sequence().value();
  append_text(*cache, base, 400);
  std::vector<SeqId> own;
  for (int t = 0; t < 3; ++t) own.push_back(cache->add_sequence().value());
  for (const SeqId seq : own) append_text(*cache, seq, 400);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 rng(static_cast<uint32_t>(t));
      std::vector<float> out;
      for (int i = 0; i < 4; ++i) {
        ASSERT_TRUE(cache->park(own[t], at_ratio(16.0)).ok());
        (void)cache->memory_usage();
        ASSERT_TRUE(cache->verify(own[t]).ok());
        ASSERT_TRUE(cache->wake(own[t]).ok());
        append(*cache, own[t], rng, 40);
        attend(*cache, own[t], rng, 1, out);
        // One that all of them park and wake: every call does it whole or says why not.
        const Status parked = cache->park(base);
        EXPECT_TRUE(parked.ok() || parked.code() == StatusCode::failed_precondition) << parked.to_string();
        const auto copy = cache->fork(base);  // shares what is packed, and what is not
        ASSERT_TRUE(copy.ok()) << copy.status().to_string();
        const Status awake = cache->wake(base);
        EXPECT_TRUE(awake.ok() || awake.code() == StatusCode::failed_precondition) << awake.to_string();
        const Status apart = cache->wake(*copy);
        EXPECT_TRUE(apart.ok() || apart.code() == StatusCode::failed_precondition) << apart.to_string();
        EXPECT_EQ(cache->positions(*copy, 1, 0).value().size(), 400u);
        ASSERT_TRUE(cache->remove(*copy).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const SeqId seq : own) {
    EXPECT_EQ(cache->length(seq).value(), 560u);
    ASSERT_TRUE(cache->remove(seq).ok());
  }
  if (cache->is_parked(base).value()) {
    ASSERT_TRUE(cache->wake(base).ok());
  }
  EXPECT_EQ(cache->positions(base, 0, 0).value().size(), 400u);
  ASSERT_TRUE(cache->remove(base).ok());
  EXPECT_EQ(in_use(*cache), 0u);
}

}  // namespace
}  // namespace tierkv::cache
