// What rows receive, added up by a device, against double precision over the decoded rows and against the processor. Run by
// `make test-cuda`; needs a device. TIERKV_CUDA_BRIEF: less of it (brief_testing.h).
#include <gtest/gtest.h>

#include <random>

#include "cuda/device_attention.h"
#include "cuda/plan/asked_testing.h"
#include "remote_memory_testing.h"

namespace tierkv::cuda {
namespace {

using testing::Asked;
using testing::kAlone;
using testing::Scene;
using testing::SceneShape;

// The device says all of it, however little that is.
std::shared_ptr<DeviceAttention> device() {
  auto machine = open_machine(0);
  EXPECT_TRUE(machine.ok()) << machine.status().message();
  return machine.ok() ? std::make_shared<DeviceAttention>(std::move(*machine), 0, 0) : nullptr;
}

// Everything of the first sequence of a scene.
void check(const DeviceAttention& device, const SceneShape& shape, uint32_t seed) {
  const Scene scene(shape, seed);
  ASSERT_TRUE(scene.status().ok()) << scene.status().message();
  Asked asked(scene, static_cast<uint32_t>(scene.views(0).size()), {});
  const uint64_t before = device.counts().weighed_rows;
  device.attend({&asked.work, 1}, kAlone);
  ASSERT_TRUE(asked.work.status.ok()) << asked.work.status.message();
  std::vector<double> out, lse;
  scene.reference(out, lse);
  bool any = false;
  for (uint32_t h = 0; h < shape.kv_heads; ++h) {
    const std::vector<double> want = scene.mass(h, lse);
    ASSERT_EQ(want.size(), asked.sums[h].size());
    for (size_t i = 0; i < want.size(); ++i) {
      // The sums are those of attention, whose fast paths round.
      ASSERT_NEAR(asked.sums[h][i], want[i], 2e-2 * want[i] + 1e-6) << h << " " << i;
      any |= want[i] > 0.0;
    }
  }
  EXPECT_GE(device.counts().weighed_rows, before + any);
  EXPECT_EQ(device.usage().on_processor, 0u);
}

TEST(CudaMass, EveryCodecAndShape) {
  const auto on = device();
  ASSERT_TRUE(on);
  int cases = 0;
  for (const std::string& name : testing::readable_codecs())
    testing::for_shapes_of(name, cases, [&](const SceneShape& shape) { check(*on, shape, 11); });
}

TEST(CudaMass, RandomShapes) {
  const auto on = device();
  ASSERT_TRUE(on);
  for (uint32_t seed = 1; seed <= testing::count(200, 12, 8); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    SceneShape shape = testing::any_scene(rng);
    shape.lengths = {static_cast<uint32_t>(1 + rng() % (rng() % 3 ? 700 : 9000))};
    check(*on, shape, seed);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// A report of two caches that got the same calls, one on the device: from host memory, and from the device's own.
TEST(CudaMass, AReportIsThatOfTheProcessor) {
  constexpr uint32_t kHeads = 8, kKvHeads = 2, kDim = 128;
  const uint32_t tokens = testing::count(3000, 3000, 600);
  for (const char* spec : testing::some({"kivi2", "kivi4", "int8", "fp16"}, 1)) {
    SCOPED_TRACE(spec);
    CacheConfig config;
    config.num_layers = 1, config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
    ASSERT_TRUE(apply_spec(spec, config).ok());
    const auto on = device();
    ASSERT_TRUE(on);
    testing::CudaMemory memory;
    const auto rows = testing::noise(size_t{tokens} * kKvHeads * kDim, 1), queries = testing::noise(size_t{3} * kHeads * kDim, 2);
    MassReport reports[3];
    for (int c = 0; c < 3; ++c) {
      auto cache = AdaptiveKVCache::create(config);
      ASSERT_TRUE(cache.ok());
      if (c != 0) (*cache)->attend_with(on);
      const SeqId seq = *(*cache)->add_sequence();
      const RowsView view = RowsView::f32(rows.data(), tokens, kKvHeads, kDim);
      ASSERT_TRUE((*cache)->append(seq, 0, view, view).ok());
      RowsView asking = RowsView::f32(queries.data(), 3, kHeads, kDim);
      std::vector<float> here(queries.size());
      float* out = here.data();
      if (c == 2) {
        asking.data = memory.send(queries.data(), queries.size() * sizeof(float));
        asking.place = MemoryPlace::device, asking.ready = memory.stream();
        out = static_cast<float*>(memory.make(queries.size() * sizeof(float)));
      }
      reports[c].want_tokens = true;
      AttentionOptions options;
      options.mass = &reports[c];
      const Status status = (*cache)->attention(seq, 0, asking, out, options);
      ASSERT_TRUE(status.ok()) << status.message();
      (*cache)->attend_with(nullptr);
    }
    for (int c = 1; c < 3; ++c) {
      ASSERT_EQ(reports[c].tokens.size(), reports[0].tokens.size());
      for (size_t i = 0; i < reports[0].tokens.size(); ++i)
        ASSERT_NEAR(reports[c].tokens[i], reports[0].tokens[i], 3e-2 * reports[0].tokens[i] + 1e-6) << i;
    }
    EXPECT_EQ(on->counts().weighed_rows, uint64_t{2} * 3 * kKvHeads * tokens - 2 * kKvHeads * (2 + 1));
    EXPECT_EQ(on->usage().on_processor, 0u);
  }
}

}  // namespace
}  // namespace tierkv::cuda
