// Rows and attention in one call (AdaptiveKVCache::step()) on a device's twin: the same as the two calls, whatever comes in
// between, and less that the device is asked for.
#include <gtest/gtest.h>

#include <atomic>
#include <list>
#include <thread>

#include "base/f16.h"
#include "cuda/device_attention.h"
#include "cuda/twin_machine_testing.h"

namespace tierkv {
namespace {

using cuda::DeviceAttention;
using cuda::testing::TwinMachine;

constexpr uint32_t kHeads = 8, kKvHeads = 2, kDim = 64;
constexpr size_t kRow = size_t{kKvHeads} * kDim, kSize = size_t{kHeads} * kDim;

std::vector<float> noise(size_t count, size_t seed) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>((i * 2654435761u + seed * 40503u) % 1000) / 500.0f - 1.0f;
  return out;
}

RowsView there(const std::vector<float>& rows, uint32_t heads, size_t at = 0, uint32_t tokens = 1) {
  RowsView view = RowsView::f32(rows.data() + at, tokens, heads, kDim);
  view.place = MemoryPlace::device;
  return view;
}

// A cache on a twin of its own, with sequences of some tokens.
struct World {
  World(const std::string& spec, bool lazy, uint32_t sequences = 2) {
    auto made = std::make_unique<TwinMachine>(cuda::MachineFacts{7, true}, 0, lazy);
    machine = made.get();
    device = std::make_shared<DeviceAttention>(std::move(made), 0);
    CacheConfig config;
    config.num_layers = 1, config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
    EXPECT_TRUE(apply_spec(spec, config).ok());
    cache = AdaptiveKVCache::create(config).value();
    cache->attend_with(device);
    for (uint32_t s = 0; s < sequences; ++s) {
      ids.push_back(*cache->add_sequence());
      const std::vector<float> rows = noise((20 + s) * kRow, s);
      const RowsView view = RowsView::f32(rows.data(), 20 + s, kKvHeads, kDim);
      EXPECT_TRUE(cache->append(ids.back(), 0, view, view).ok());
    }
  }
  ~World() { cache->attend_with(nullptr); }

  TwinMachine* machine;
  std::shared_ptr<DeviceAttention> device;
  std::unique_ptr<AdaptiveKVCache> cache;
  std::vector<SeqId> ids;
};

class DeviceJoint : public ::testing::TestWithParam<bool> {};

TEST_P(DeviceJoint, GivesTheBitsOfTwoCalls) {
  // Without hot rows what is due settles in the very call that brings it; kivi12 is the processor's.
  for (const char* spec : {"hot=32,warm=64,archive=kivi2,sinks=4", "hot=0,warm=32,warm_block=16,archive=rot4,sinks=0",
                           "hot=32,warm=0,archive=kivi12", "fp16", "hot=16,warm=all,window=40"}) {
    SCOPED_TRACE(spec);
    World one(spec, GetParam()), two(spec, GetParam());
    std::list<std::vector<float>> sent;  // until the device has read them
    std::vector<std::vector<uint16_t>> got[2];
    for (uint32_t step = 0; step < 90; ++step) {
      const size_t many = one.ids.size();
      const auto& rows = sent.emplace_back(noise(many * kRow, 100 + step));
      const auto& queries = sent.emplace_back(noise(many * kSize, 1000 + step));
      for (World* world : {&one, &two}) {
        auto& out = got[world == &two].emplace_back(many * kSize);
        std::vector<AppendItem> appends;
        std::vector<AttentionItem> items;
        for (size_t s = 0; s < many; ++s) {
          const RowsView row = there(rows, kKvHeads, s * kRow);
          appends.push_back({world->ids[s], row, row, {}});
          auto* const to = reinterpret_cast<float*>(out.data() + s * kSize);
          items.push_back({world->ids[s], there(queries, kHeads, s * kSize), to, -1, nullptr, {}, DType::bf16});
        }
        if (world == &one) {
          ASSERT_TRUE(world->cache->step(0, appends, items).ok()) << items[0].status.message();
        } else {
          ASSERT_TRUE(world->cache->append_many(0, appends).ok());
          ASSERT_TRUE(world->cache->attention(0, items).ok());
        }
      }
    }
    ASSERT_TRUE(one.device->check().ok() && two.device->check().ok());
    EXPECT_EQ(got[0], got[1]);
    EXPECT_EQ(one.device->counts().rows_taken, two.device->counts().rows_taken);
    for (const SeqId id : one.ids) EXPECT_TRUE(one.cache->verify(id).ok());
    if (one.device->counts().rows_taken != 0) {
      EXPECT_LT(one.machine->asked, two.machine->asked);
    }
  }
}

// A steady step: stream, what it moves, attention, its mark, and the stream again.
TEST(DeviceJoint, ASteadyStepAsksForFiveThings) {
  World world("hot=256,warm=64,archive=kivi2,sinks=4", true, 1);
  const std::vector<float> row = noise(kRow, 5), query = noise(kSize, 6);
  std::vector<float> out(kSize);
  for (uint32_t step = 0; step < 40; ++step) {
    AppendItem append{world.ids[0], there(row, kKvHeads), there(row, kKvHeads), {}};
    AttentionItem item{world.ids[0], there(query, kHeads), out.data()};
    const uint64_t asked = world.machine->asked, sends = world.machine->sends, puts = world.machine->puts;
    ASSERT_TRUE(world.cache->step(0, {&append, 1}, {&item, 1}).ok());
    if (step < 3) continue;
    EXPECT_EQ(world.machine->sends, sends);
    EXPECT_EQ(world.machine->puts - puts, 1u);
    EXPECT_EQ(world.machine->asked - asked, 5u) << step;
  }
  EXPECT_TRUE(world.device->check().ok());
}

// Where attention does not come to it the rows are in all the same, and nothing stays open.
TEST_P(DeviceJoint, AStepThatIsRefusedHasMovedItsRows) {
  World world("hot=32,warm=64,archive=kivi2,sinks=4", GetParam(), 1);
  const SeqId seq = world.ids[0];
  const std::vector<float> query = noise(kSize, 6);
  std::vector<float> out(kSize), keys(kRow);
  std::list<std::vector<float>> sent;
  for (uint32_t step = 0; step < 60; ++step) {
    const auto& row = sent.emplace_back(noise(kRow, step));
    AppendItem append{seq, there(row, kKvHeads), there(row, kKvHeads), {}};
    AttentionItem item{step % 2 == 0 ? seq : seq + 100, there(query, kHeads), out.data()};
    const Status status = world.cache->step(0, {&append, 1}, {&item, 1});
    EXPECT_EQ(status.code(), step % 2 == 0 ? StatusCode::ok : StatusCode::not_found) << status.message();
    EXPECT_EQ(*world.cache->length(seq, 0), 21 + step);
    const uint32_t newest = 20 + step;
    ASSERT_TRUE(world.cache->get(seq, 0, std::span(&newest, 1), keys.data(), nullptr).ok());
    for (size_t c = 0; c < kRow; ++c) ASSERT_EQ(keys[c], f16_to_f32(f32_to_f16(row[c]))) << step;
  }
  AppendItem wrong{seq + 7, there(query, kKvHeads), there(query, kKvHeads), {}};
  AttentionItem item{seq, there(query, kHeads), out.data()};
  EXPECT_EQ(world.cache->step(0, {&wrong, 1}, {&item, 1}).code(), StatusCode::not_found);
  EXPECT_EQ(item.status.code(), StatusCode::not_found);
  EXPECT_TRUE(world.device->check().ok());
}

INSTANTIATE_TEST_SUITE_P(Twin, DeviceJoint, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "lazy" : "eager"; });

// Threads with sequences of their own, and one that reads rows of all of them, which waits for what is on its way.
TEST(DeviceJoint, ManyThreadsTakeSteps) {
  constexpr uint32_t kThreads = 3, kSteps = 150;
  World world("hot=32,warm=64,archive=kivi2,sinks=4", true, kThreads);
  std::atomic<int> failures = 0, running = kThreads;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::list<std::vector<float>> sent;
      std::vector<float> out(kSteps * kSize);
      for (uint32_t step = 0; step < kSteps; ++step) {
        const auto& row = sent.emplace_back(noise(kRow, 100 * t + step));
        const auto& query = sent.emplace_back(noise(kSize, 7 * t + step));
        AppendItem append{world.ids[t], there(row, kKvHeads), there(row, kKvHeads), {}};
        AttentionItem item{world.ids[t], there(query, kHeads), out.data() + step * kSize};
        failures += !world.cache->step(0, {&append, 1}, {&item, 1}).ok();
      }
      failures += !world.device->check().ok();
      --running;
    });
  }
  std::vector<float> keys(kRow);
  while (running != 0) {
    for (const SeqId id : world.ids) {
      const uint32_t newest = *world.cache->length(id, 0) - 1;
      failures += !world.cache->get(id, 0, std::span(&newest, 1), keys.data(), nullptr).ok();
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  for (const SeqId id : world.ids) EXPECT_TRUE(world.cache->verify(id).ok());
}

}  // namespace
}  // namespace tierkv
