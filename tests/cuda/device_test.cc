// Attention on a device against double precision over the decoded rows, and a cache on a device against the same cache on the
// processor. Run by `make test-cuda`; needs a device. TIERKV_CUDA_BRIEF: less of it (brief_testing.h).
#include <gtest/gtest.h>

#include <numeric>

#include "attn/cpu_backend.h"
#include "cuda/backend.h"
#include "cuda/plan/asked_testing.h"
#include "remote_memory_testing.h"
#include "steps_testing.h"

namespace tierkv::cuda {
namespace {

using testing::kAlone;
using testing::Scene;
using testing::SceneShape;

std::shared_ptr<DeviceBackend> backend(uint64_t limit = 0) {
  auto made = make_backend({0, limit});
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? *made : nullptr;
}

// The sequences of a scene as one call.
struct Call {
  explicit Call(const Scene& scene) {
    const SceneShape& shape = scene.shape();
    const uint32_t heads = shape.kv_heads * shape.group;
    out.assign(scene.queries().size(), NAN), lse.assign(scene.rows(), NAN);
    positions.resize(shape.lengths.size());
    views.resize(scene.tasks());
    for (size_t t = 0; t < scene.tasks(); ++t) {
      views[t].assign(scene.views(t).begin(), scene.views(t).end());
      for (attn::BlockView& view : views[t]) {
        // Blocks of one scene differ; names of blocks that were freed must not come back.
        static uint64_t name = 0;
        if (view.rows == shape.block) view.sealed = ++name * 0x9E3779B97F4A7C15ull;
      }
    }
    for (size_t s = 0; s < shape.lengths.size(); ++s) {
      attn::AttendWork& work = works.emplace_back();
      for (uint32_t h = 0; h < shape.kv_heads; ++h) work.heads.emplace_back(views[s * shape.kv_heads + h]);
      const size_t first = s * heads;
      work.queries = RowsView::f32(scene.queries().data() + first * shape.head_dim, 1, heads, shape.head_dim);
      positions[s] = scene.position(s * shape.kv_heads);
      work.positions = &positions[s];
      work.out = out.data() + first * shape.head_dim;
      work.lse = lse.data() + first;
      work.sink_logits = scene.sinks();
      work.params = shape.params;
    }
  }
  std::vector<std::vector<attn::BlockView>> views;
  std::vector<uint32_t> positions;
  std::vector<attn::AttendWork> works;
  std::vector<float> out, lse;
};

double worst = 0.0;

void check(const DeviceBackend& device, const SceneShape& shape, uint32_t seed) {
  const Scene scene(shape, seed);
  ASSERT_TRUE(scene.status().ok()) << scene.status().message();
  Call call(scene);
  const uint64_t before = device.usage().on_processor;
  device.attend(call.works, kAlone);
  EXPECT_EQ(device.usage().on_processor, before);
  for (const attn::AttendWork& work : call.works) ASSERT_TRUE(work.status.ok()) << work.status.message();
  std::vector<double> want, want_lse;
  scene.reference(want, want_lse);
  const double error = testing::distance(want, call.out.data());
  worst = std::max(worst, error);
  EXPECT_LT(error, scene.tolerance());
  testing::expect_sums(want_lse, call.lse, 5e-3);
}

TEST(CudaDevice, EveryCodecAndShape) {
  const auto device = backend();
  ASSERT_TRUE(device);
  int cases = 0;
  double all = 0.0;
  for (const std::string& name : testing::readable_codecs()) {
    worst = 0.0;
    std::string at;  // where it is largest
    testing::for_shapes_of(name, cases, [&](const SceneShape& shape) {
      const double before = worst;
      check(*device, shape, 11);
      if (worst > before) at = "head_dim " + std::to_string(shape.head_dim) + " group " + std::to_string(shape.group);
    });
    std::printf("%-20s %.2e  %s\n", name.c_str(), worst, at.c_str());
    all = std::max(all, worst);
  }
  std::printf("largest error of all codecs and shapes: %.2e\n", all);
}

TEST(CudaDevice, RandomShapesAndRaggedBatches) {
  const auto device = backend();
  ASSERT_TRUE(device);
  worst = 0.0;
  for (uint32_t seed = 1; seed <= testing::count(500, 12, 8); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    check(*device, testing::any_scene(rng), seed);
    if (::testing::Test::HasFatalFailure()) return;
  }
  std::printf("largest error of the random ones: %.2e\n", worst);
}

CacheConfig small_config(const std::string& spec) {
  CacheConfig config;
  config.num_layers = 2, config.num_heads = 8, config.num_kv_heads = 2, config.head_dim = 128;
  EXPECT_TRUE(apply_spec(spec, config).ok());
  return config;
}

// The same calls on two caches, one on the device: the same answers.
TEST(CudaDevice, ACacheAnswersAsOnTheProcessor) {
  for (const char* spec : testing::some({"balanced", "kivi2", "kivi4", "deep", "int8", "fp16", "adr004"}, 2)) {
    SCOPED_TRACE(spec);
    const CacheConfig config = small_config(spec);
    auto here = AdaptiveKVCache::create(config), there = AdaptiveKVCache::create(config);
    ASSERT_TRUE(here.ok() && there.ok());
    auto device = attach(**there);
    ASSERT_TRUE(device.ok()) << device.status().message();
    AdaptiveKVCache* caches[] = {here->get(), there->get()};
    SeqId seqs[2][2];
    for (int c = 0; c < 2; ++c) seqs[c][0] = *caches[c]->add_sequence();
    const auto append = [&](int c, SeqId seq, uint32_t tokens, uint32_t seed) {
      const auto rows = testing::noise(static_cast<size_t>(tokens) * 2 * 128, seed), values = testing::noise(rows.size(), seed + 1);
      for (uint32_t layer = 0; layer < 2; ++layer)
        ASSERT_TRUE(
            caches[c]
                ->append(seq, layer, RowsView::f32(rows.data(), tokens, 2, 128), RowsView::f32(values.data(), tokens, 2, 128))
                .ok());
    };
    const auto compare = [&](int sequence, uint32_t seed) {
      const auto queries = testing::noise(8 * 128, seed);
      std::vector<float> out[2];
      for (int c = 0; c < 2; ++c) {
        out[c].assign(8 * 128, NAN);
        const Status status = caches[c]->attention(seqs[c][sequence], 1, RowsView::f32(queries.data(), 1, 8, 128), out[c].data());
        ASSERT_TRUE(status.ok()) << status.message();
      }
      const std::vector<double> want(out[0].begin(), out[0].end());
      EXPECT_LT(testing::distance(want, out[1].data()), 2e-2);  // the processor's own kernels round too
    };
    for (int c = 0; c < 2; ++c) append(c, seqs[c][0], 900, 1);
    compare(0, 100);
    for (int c = 0; c < 2; ++c) seqs[c][1] = *caches[c]->fork(seqs[c][0]);
    for (uint32_t step = 0; step < testing::count(40, 3, 3); ++step) {
      for (int c = 0; c < 2; ++c) append(c, seqs[c][0], 1 + step % 7, 1000 + 2 * step);
      for (int c = 0; c < 2; ++c) append(c, seqs[c][1], 3, 5000 + 2 * step);
      compare(0, 200 + step), compare(1, 300 + step);
    }
    for (int c = 0; c < 2; ++c) ASSERT_TRUE(caches[c]->truncate(seqs[c][0], 905).ok());
    compare(0, 400);
    const Usage usage = (*device)->usage();
    EXPECT_GT(usage.launches, 0u);
    EXPECT_EQ(usage.on_processor, 0u);
    EXPECT_GE(usage.block_bytes + usage.scratch_bytes, 1u);
    for (int c = 0; c < 2; ++c) ASSERT_TRUE(caches[c]->remove(seqs[c][1]).ok());
    EXPECT_TRUE(detach(**there).ok());
    compare(0, 500);
  }
}

// What stands on the device from call to call, after everything that changes it (tests/device_steps_test.cc does the same on a
// twin).
TEST(CudaDevice, ManyStepsOfManySequences) {
  for (const char* spec : testing::some({"hot=32,warm=0,archive=kivi2,sinks=4",
                                         "hot=32,warm=128,warm_codec=kivi4,archive=rot2,sinks=4", "balanced", "kivi4", "fp16"},
                                        2)) {
    SCOPED_TRACE(spec);
    const auto device = backend();
    ASSERT_TRUE(device);
    testing::Steps steps(spec, device, 3);
    many_steps(steps, testing::count(150, 12, 5), 2e-2);  // the processor's own kernels round too
    if (::testing::Test::HasFatalFailure()) return;
    EXPECT_EQ(device->usage().on_processor, 0u);
    std::printf("%-50s %.2e\n", spec, steps.worst());
  }
}

TEST(CudaDevice, BlocksThatNothingStandsOnMakeRoom) {
  const auto device = backend(uint64_t{32} << 20);
  ASSERT_TRUE(device);
  testing::Steps steps("hot=16,warm=all,warm_codec=fp16,warm_block=128,archive_block=128,sinks=0", device, 9);
  for (int round = 0; round < 4; ++round) {
    const SeqId id = steps.add(128 * 60 + 20);  // 15 MiB of blocks
    steps.compare(2e-2);
    steps.append(id, 1);
    steps.compare(2e-2);
    ASSERT_FALSE(::testing::Test::HasFatalFailure());
    steps.remove(id);
  }
  EXPECT_LE(device->usage().block_bytes, uint64_t{32} << 20);
  EXPECT_GT(device->usage().uploads, 512u);
}

// Rows, queries and results on the device, in the order of a stream (tests/device_rows_test.cc does the same on a twin).
TEST(CudaDevice, RowsAndResultsInTheDevicesMemory) {
  for (const bool own : {true, false}) {
    for (const char* spec : testing::some(
             {"hot=16,warm=64,archive=rot4,hot_type=bf16", "balanced", "fp16", "hot=32,warm=0,archive=kivi2,sinks=4"}, 2)) {
      SCOPED_TRACE(spec);
      const auto device = backend();
      ASSERT_TRUE(device);
      testing::CudaMemory memory(own);
      testing::Steps steps(spec, device, 3, &memory);
      steps.options.observe = !own;  // what rows receive is asked for, or not
      many_steps(steps, testing::count(100, 12, 5), 2e-2);
      if (::testing::Test::HasFatalFailure()) return;
      EXPECT_EQ(device->usage().on_processor, 0u);
      steps.compare(2e-2, 20);  // a prompt, which is waited for
      EXPECT_EQ(device->usage().on_processor, 0u);
      const Status status = device->check();
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_GE(device->usage().peak_bytes, device->usage().device_bytes);
      std::printf("%-50s %.2e\n", spec, steps.worst());
    }
  }
}

TEST(CudaDevice, RowsOfSmallHeadsInTheDevicesMemory) {
  for (const uint32_t dim : {32u, 48u, 64u}) {
    for (const char* spec : {"fp16", "hot=32,warm=64,warm_codec=int8,archive=kivi4-g16,sinks=4"}) {
      SCOPED_TRACE(spec);
      const auto device = backend();
      ASSERT_TRUE(device);
      testing::CudaMemory memory(false);
      testing::Steps steps(spec, device, dim, &memory, dim);
      steps.options.observe = false;
      many_steps(steps, testing::count(100, 12, 5), 2e-2);
      if (::testing::Test::HasFatalFailure()) return;
      EXPECT_EQ(device->usage().on_processor, 0u);
    }
  }
}

TEST(CudaDevice, WhatTheDeviceFindsIsSaidLater) {
  const auto device = backend();
  ASSERT_TRUE(device);
  testing::CudaMemory memory;
  testing::Steps steps("hot=32,warm=0,archive=kivi2,sinks=4", device, 3, &memory);
  const SeqId id = steps.add(200);
  AdaptiveKVCache& cache = steps.device_cache();
  constexpr uint32_t kHeads = testing::Steps::kHeads, kKvHeads = testing::Steps::kKvHeads, kDim = testing::Steps::kDim;
  std::vector<float> queries(kHeads * kDim, 0.25f), rows(kKvHeads * kDim, 0.5f), out(queries.size());
  const auto there = [&](const std::vector<float>& of, uint32_t heads) {
    RowsView view = RowsView::f32(static_cast<const float*>(memory.send(of.data(), of.size() * 4)), 1, heads, kDim);
    view.place = MemoryPlace::device, view.ready = memory.stream();
    return view;
  };
  auto* const to = static_cast<float*>(memory.make(out.size() * 4));
  ASSERT_TRUE(cache.attention(id, 0, there(queries, kHeads), to).ok());
  EXPECT_TRUE(device->check().ok());
  queries[3] = NAN;
  ASSERT_TRUE(cache.attention(id, 0, there(queries, kHeads), to).ok());
  EXPECT_EQ(device->check().code(), StatusCode::out_of_range);
  EXPECT_TRUE(device->check().ok());
  memory.fetch(out.data(), to, out.size() * 4);
  for (const float x : out) ASSERT_TRUE(std::isfinite(x));
  queries[3] = 0.0f;
  ASSERT_TRUE(cache.append(id, 0, there(rows, kKvHeads), there(rows, kKvHeads)).ok());
  rows[7] = NAN;
  ASSERT_TRUE(cache.append(id, 0, there(rows, kKvHeads), there(rows, kKvHeads)).ok());
  EXPECT_EQ(cache.freeze(id).status().code(), StatusCode::invalid_argument);
  ASSERT_TRUE(cache.truncate(id, 200).ok());
  EXPECT_TRUE(cache.freeze(id).ok());
  ASSERT_TRUE(cache.attention(id, 0, there(queries, kHeads), to).ok());
  EXPECT_TRUE(device->check().ok());

  const RowsView query = there(queries, kHeads);
  auto* const stream = static_cast<cudaStream_t>(memory.stream());
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(cache.attention(id, 0, query, to).code(), StatusCode::failed_precondition);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphDestroy(graph);
  EXPECT_TRUE(cache.attention(id, 0, query, to).ok());
  EXPECT_TRUE(device->check().ok());
}

// What rows receive is asked for and the device still does the attention.
TEST(CudaDevice, MassIsThatOfTheProcessor) {
  const auto device = backend();
  ASSERT_TRUE(device);
  for (const char* name : {"klt1.25+top4", "kivi2"}) {
    SCOPED_TRACE(name);
    SceneShape shape;
    shape.codecs = {name};
    shape.lengths = {2000};
    shape.hot = 300, shape.sinks = 4;
    const Scene scene(shape, 3);
    ASSERT_TRUE(scene.status().ok()) << scene.status().message();
    testing::Asked here(scene, 4, {}), there(scene, 4, {});
    attn::cpu_backend().attend({&here.work, 1}, kAlone);
    device->attend({&there.work, 1}, kAlone);
    ASSERT_TRUE(here.work.status.ok() && there.work.status.ok());
    for (uint32_t h = 0; h < shape.kv_heads; ++h) {
      for (size_t i = 0; i < here.sums[h].size(); ++i)
        EXPECT_NEAR(there.sums[h][i], here.sums[h][i], 2e-2 * here.sums[h][i]) << h << " " << i;
    }
  }
  EXPECT_EQ(device->usage().on_processor, 0u);
}

TEST(CudaDevice, WhatCannotBeIsSaid) {
  EXPECT_EQ(available(99).code(), StatusCode::invalid_argument);
  EXPECT_EQ(make_backend({-1, 0}).status().code(), StatusCode::invalid_argument);
}

TEST(CudaDevice, ALimitOfMemoryIsKept) {
  const auto device = backend(uint64_t{32} << 20);
  ASSERT_TRUE(device);
  SceneShape shape;
  shape.codecs = {"fp16"};
  shape.kv_heads = 1, shape.group = 1;
  shape.lengths = {128 * 200};
  // One call has 13 MiB of blocks: the first three calls push each other out.
  for (uint32_t seed = 1; seed <= 4; ++seed) check(*device, shape, seed);
  EXPECT_LE(device->usage().block_bytes, uint64_t{32} << 20);
  shape.lengths = {128 * 700};  // 46 MiB at once
  const Scene scene(shape, 9);
  Call call(scene);
  device->attend(call.works, kAlone);
  EXPECT_EQ(call.works[0].status.code(), StatusCode::resource_exhausted) << call.works[0].status.message();
  shape.lengths = {128 * 100};
  check(*device, shape, 10);
}

TEST(CudaDevice, TheSameCallGivesTheSameBits) {
  const auto device = backend();
  ASSERT_TRUE(device);
  SceneShape shape;
  shape.codecs = {"kivi2", "rot2"};
  shape.lengths = {9000, 130, 2500};
  const Scene scene(shape, 5);
  Call first(scene), second(scene);
  device->attend(first.works, kAlone);
  device->attend(second.works, kAlone);
  EXPECT_EQ(first.out, second.out);
}

}  // namespace
}  // namespace tierkv::cuda
