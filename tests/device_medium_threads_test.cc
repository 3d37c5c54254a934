// Blocks that only the device has (device_medium_test.cc), and many threads.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "cuda/device_attention.h"
#include "cuda/twin_machine_testing.h"
#include "inspect.h"

namespace tierkv {
namespace {

// Sequences of their own, and one that all fork, on four threads; somebody always wants to know figures.
TEST(DeviceMedium, ManyThreadsKeepTheirBlocksThere) {
  auto machine = std::make_unique<cuda::testing::TwinMachine>(cuda::MachineFacts{7, true}, 0, true);
  const auto device = std::make_shared<cuda::DeviceAttention>(std::move(machine), 0, cuda::kFewRows, false);
  CacheConfig config;
  config.num_layers = 1, config.num_heads = config.num_kv_heads = 2, config.head_dim = 64;
  ASSERT_TRUE(apply_spec("hot=16,warm=0,archive=int8,warm_block=16,archive_block=32,sinks=4", config).ok());
  auto cache = AdaptiveKVCache::create(config).value();
  cache->attend_with(device);
  const auto rows = [](uint32_t tokens, size_t seed) {
    std::vector<float> out(size_t{tokens} * 2 * 64);
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>((i * 2654435761u + seed * 40503u) % 1000) / 500.0f - 1.0f;
    return out;
  };
  const SeqId shared = *cache->add_sequence();
  const std::vector<float> first = rows(200, 1);
  ASSERT_TRUE(cache->append(shared, 0, RowsView::f32(first.data(), 200, 2, 64), RowsView::f32(first.data(), 200, 2, 64)).ok());
  std::atomic<int> failures = 0, running = 4;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto fine = [&](const Status& status) { failures += !status.ok(); };
      std::vector<float> out(128);
      for (size_t round = 0; round < 6; ++round) {
        const auto id = round % 2 == 0 ? cache->add_sequence() : cache->fork(shared);
        for (size_t piece = 0; id.ok() && piece < 4; ++piece) {
          const std::vector<float> more = rows(50, 100 * t + 10 * round + piece);
          const RowsView view = RowsView::f32(more.data(), 50, 2, 64);
          fine(cache->append(*id, 0, view, view));
          fine(cache->attention(*id, 0, RowsView::f32(more.data(), 1, 2, 64), out.data()));
          fine(cache->attention(shared, 0, RowsView::f32(more.data(), 1, 2, 64), out.data()));
        }
        fine(cache->verify(*id));
        fine(cache->freeze(*id).status());
        fine(cache->remove(*id));
      }
      --running;
    });
  }
  while (running != 0) (void)cache->memory_usage(), (void)device->usage();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_GT(device->counts().kept_alone, 0u);
  EXPECT_TRUE(cache->attend_here().ok());
  EXPECT_EQ(device->usage().only_blocks, 0u);
  EXPECT_TRUE(cache->verify(shared).ok());
  EXPECT_EQ(testing::books_problem(*cache), "");
}

}  // namespace
}  // namespace tierkv
