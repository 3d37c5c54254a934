// Tables on a device's twin whose caller has rows in the device's memory: tokens that waited for them are archived as the sequence
// grows, as they are on the processor; and every layer has its own.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "calib/synthetic_statistics.h"
#include "cuda/device_attention.h"
#include "cuda/twin_machine_testing.h"
#include "solve/testing.h"
#include "tierkv/cache.h"

namespace tierkv {
namespace {

constexpr uint32_t kLayers = 2, kHeads = 4, kKvHeads = 2, kDim = 64, kPrompt = 1500;

struct World {
  explicit World(std::shared_ptr<cuda::DeviceAttention> on = nullptr) : device(std::move(on)) {
    CacheConfig config;
    config.num_layers = kLayers, config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
    EXPECT_TRUE(apply_spec("hot=32,warm=128,warm_codec=rot4,archive=auto-cuda,sinks=4", config).ok());
    cache = AdaptiveKVCache::create(config).value();
    if (device) cache->attend_with(device);
    LearningModel model;
    model.name = "made up", model.fingerprint = 7, model.ropes.assign(kLayers, solve::usual_rope(kDim));
    EXPECT_TRUE(cache->learn(std::move(model), {1u << 30, ""}).ok());
    seq = cache->add_sequence().value();
  }
  RowsView view(const std::vector<float>& rows, uint32_t tokens, uint32_t heads) const {
    RowsView out = RowsView::f32(rows.data(), tokens, heads, kDim);
    if (device) out.place = MemoryPlace::device;
    return out;
  }
  void step(uint32_t tokens) {
    for (uint32_t l = 0; l < kLayers; ++l) {
      std::vector<float> keys(size_t{tokens} * kKvHeads * kDim), queries(size_t{kHeads} * kDim, 0.1f), out(queries.size());
      for (float& x : keys) x = static_cast<float>((at++ * 2654435761u) % 1000) / 500.0f - 1.0f;
      const RowsView rows = view(keys, tokens, kKvHeads);
      Status status = cache->append(seq, l, rows, rows);
      ASSERT_TRUE(status.ok()) << status.to_string();
      AttentionOptions options;
      options.observe = false;
      status = cache->attention(seq, l, view(queries, 1, kHeads), out.data(), options);
      ASSERT_TRUE(status.ok()) << status.to_string();
      ASSERT_TRUE(!device || device->check().ok());
    }
  }
  uint64_t tokens(Tier tier) const { return cache->memory_usage().tier[static_cast<int>(tier)].tokens; }

  std::shared_ptr<cuda::DeviceAttention> device;
  std::unique_ptr<AdaptiveKVCache> cache;
  SeqId seq = 0;
  uint32_t at = 0;
};

TEST(DeviceWaiting, CatchesUpAsTheSequenceGrows) {
  const auto device =
      std::make_shared<cuda::DeviceAttention>(std::make_unique<cuda::testing::TwinMachine>(cuda::MachineFacts{7, true}), 0);
  World there(device), here;
  const CalibrationPtr tables = solve::klt_calibration(calib::SyntheticModel(calib::SyntheticShape{}).statistics()).value();
  for (World* world : {&there, &here}) {
    world->step(kPrompt);
    world->step(1);
    EXPECT_EQ(world->tokens(Tier::archive), 0u);
    ASSERT_TRUE(world->cache->set_calibration(tables).ok());
    EXPECT_EQ(world->tokens(Tier::archive), 0u) << "nothing has grown";
  }
  uint64_t before = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    there.step(1), here.step(1);
    EXPECT_EQ(there.tokens(Tier::archive), here.tokens(Tier::archive)) << i;
    EXPECT_EQ(there.tokens(Tier::warm), here.tokens(Tier::warm)) << i;
    EXPECT_TRUE(i >= 4 || there.tokens(Tier::archive) > before) << "at every step, not once a block";
    before = there.tokens(Tier::archive);
  }
  EXPECT_GE(device->counts().rows_taken, 8u * kLayers) << "rows that stayed on the device";
  EXPECT_GT(there.tokens(Tier::archive), uint64_t{kLayers} * kKvHeads * (kPrompt - 32 - 128 - 128 - 4 - 64));
  EXPECT_EQ(there.cache->archive_codec(0), "klt1.875");
}

// With tables every head of every layer has a codec of its own. Their list on the device grows as layers come, under launches that
// are still to be done; and what a call sends is its own.
TEST(DeviceTables, EveryLayerHasItsOwn) {
  constexpr uint32_t kMany = 10, kTokens = 400;
  calib::SyntheticShape shape;
  shape.layers = kMany;
  const CalibrationPtr tables = solve::klt_calibration(calib::SyntheticModel(shape).statistics()).value();
  const auto device = std::make_shared<cuda::DeviceAttention>(
      std::make_unique<cuda::testing::TwinMachine>(cuda::MachineFacts{7, true}, 0, /*lazy=*/true), 0);
  CacheConfig config;
  config.num_layers = kMany, config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
  ASSERT_TRUE(apply_spec("hot=32,warm=0,archive=auto,sinks=4", config).ok());
  std::vector<float> rows(size_t{kTokens} * kKvHeads * kDim), queries(size_t{kHeads} * kDim);
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (float& x : rows) x = normal(random);
  for (float& x : queries) x = normal(random);
  std::vector<std::vector<float>> results[2];
  uint64_t parcel = 0;
  for (const bool there : {false, true}) {
    const auto cache = AdaptiveKVCache::create(config, tables).value();
    if (there) cache->attend_with(device);
    const SeqId seq = cache->add_sequence().value();
    results[there].assign(kMany, std::vector<float>(queries.size(), NAN));
    for (uint32_t l = 0; l < kMany; ++l) {
      const RowsView view = RowsView::f32(rows.data(), kTokens, kKvHeads, kDim);
      ASSERT_TRUE(cache->append(seq, l, view, view).ok());
    }
    for (uint32_t l = 0; l < kMany; ++l) {
      RowsView view = RowsView::f32(queries.data(), 1, kHeads, kDim);
      if (there) view.place = MemoryPlace::device;
      ASSERT_TRUE(cache->attention(seq, l, view, results[there][l].data()).ok());
      if (there && l == 0) parcel = device->counts().parcel_bytes;
    }
    ASSERT_TRUE(!there || device->check().ok());
  }
  EXPECT_EQ(device->usage().on_processor, 0u);
  EXPECT_EQ(device->counts().parcel_bytes, parcel) << "of the last layer as of the first";
  for (uint32_t l = 0; l < kMany; ++l) {
    for (size_t i = 0; i < queries.size(); ++i) ASSERT_NEAR(results[1][l][i], results[0][l][i], 2e-2) << l << ", " << i;
  }
}

}  // namespace
}  // namespace tierkv
