// What the cache says of its memory: the parts sum to the total, the total keeps to the budget, and asking costs nothing.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "snapshot/deep_testing.h"

namespace {
std::atomic<uint64_t> allocations = 0;
}

// This program's own: every allocation is counted. Not inlined, so that the compiler sees pairs and not malloc against delete.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace tierkv::cache {
namespace {

using namespace tierkv::snapshot::testing;

uint64_t sum_of(const MemoryStats& m) {
  uint64_t sum = m.bookkeeping_bytes + m.parked_bytes + m.free_bytes;
  for (const TierMemory& tier : m.tier) sum += tier.bytes();
  return sum;
}

TEST(MemoryUsage, AllocatesNothing) {
  Filled f = filled("hot=32,warm=64,archive=rot4,sinks=4", 800);
  const SeqId other = f.cache->fork(f.seq).value();
  ASSERT_TRUE(f.cache->set_calibration(calibration(8)).ok());
  const uint64_t before = allocations;
  const MemoryStats all = f.cache->memory_usage();
  const MemoryStats one = f.cache->memory_usage(other).value();
  EXPECT_EQ(allocations, before);
  EXPECT_GT(all.total_bytes, one[Tier::archive].bytes());
}

TEST(MemoryUsage, RowsThatMoveAndRowsThatGoAreCounted) {
  Filled f = filled("hot=32,warm=64,archive=rot4,sinks=4,eviction.policy=h2o", 800);
  const auto live = [&] {
    uint64_t rows = 0;
    for (const TierMemory& tier : f.cache->memory_usage().tier) rows += tier.tokens;
    return rows;
  };
  const MemoryStats m = f.cache->memory_usage();
  const auto moved = [&](Tier tier) { return m.graduated[static_cast<int>(tier)]; };
  EXPECT_EQ(moved(Tier::hot), 0u);
  EXPECT_GT(m[Tier::archive].tokens, 0u);
  EXPECT_EQ(moved(Tier::sink), m[Tier::sink].tokens);
  EXPECT_EQ(moved(Tier::archive), m[Tier::archive].tokens);
  EXPECT_EQ(moved(Tier::warm), m[Tier::warm].tokens + m[Tier::archive].tokens);  // who is archived was warm before
  EXPECT_EQ(m.evicted, 0u);
  const uint64_t before = live();
  ASSERT_TRUE(f.cache->evict(f.seq, 300).ok());
  EXPECT_LT(live(), before);
  EXPECT_EQ(f.cache->memory_usage().evicted, before - live());
}

TEST(MemoryUsage, PartsSumToTheTotalAndKeepToTheBudgetWithTables) {
  CacheConfig config = config_of("hot=32,warm=64,archive=rot4,sinks=4");
  config.byte_budget = 500 << 10;
  auto cache = AdaptiveKVCache::create(config, calibration()).value();
  const SeqId seq = cache->add_sequence().value();
  const std::vector<float> row(made_up::kHeads * made_up::kDim, 0.25f);
  const RowsView view = RowsView::f32(row.data(), 1, made_up::kHeads, made_up::kDim);
  Status status;
  const auto check = [&] {
    const MemoryStats m = cache->memory_usage(), own = cache->memory_usage(seq).value();
    EXPECT_EQ(sum_of(m), m.total_bytes);
    EXPECT_EQ(sum_of(own), own.total_bytes);
    EXPECT_LE(m.total_bytes, m.budget_bytes);
    EXPECT_LE(m.peak_bytes, m.budget_bytes);
    EXPECT_GT(m.table_bytes, 0u);
    EXPECT_EQ(m.resident_bytes(), m.total_bytes + m.table_bytes);
    EXPECT_NEAR(m.compression() * static_cast<double>(m.resident_bytes()), static_cast<double>(m.fp16_bytes), 1.0);
  };
  for (uint32_t t = 0; status.ok(); ++t) {
    for (uint32_t l = 0; l < made_up::kLayers && status.ok(); ++l) status = cache->append(seq, l, view, view);
    if (t % 100 == 0) check();
  }
  check();
  ASSERT_TRUE(cache->truncate(seq, cache->length(seq).value()).ok());
  ASSERT_TRUE(cache->park(seq).ok());
  check();
}

TEST(MemoryUsage, LiveBytesOfSharedBlocksCountOnce) {
  Filled f = filled("hot=32,warm=64,archive=rot4,sinks=4", 800);
  const MemoryStats one = f.cache->memory_usage();
  const SeqId a = f.cache->fork(f.seq).value(), b = f.cache->fork(f.seq).value();
  const MemoryStats three = f.cache->memory_usage();
  for (int t = 0; t < kNumTiers; ++t) {
    EXPECT_EQ(three.tier[t].bytes(), one.tier[t].bytes()) << t;
    EXPECT_NEAR(static_cast<double>(three.tier[t].payload_bytes), static_cast<double>(one.tier[t].payload_bytes), 200.0) << t;
    EXPECT_EQ(three.tier[t].tokens, 3 * one.tier[t].tokens) << t;
  }
  ASSERT_TRUE(f.cache->remove(a).ok());
  ASSERT_TRUE(f.cache->remove(b).ok());
  for (int t = 0; t < kNumTiers; ++t) EXPECT_EQ(f.cache->memory_usage().tier[t].payload_bytes, one.tier[t].payload_bytes) << t;
}

}  // namespace
}  // namespace tierkv::cache
