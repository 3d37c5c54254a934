// A cache on a device's backend, all of it but the device: the memory is the processor's and the launch the scalar twin. What is
// kept from call to call must never be stale.
#include <gtest/gtest.h>

#include <cstdlib>

#include "cuda/device_attention.h"
#include "cuda/steps_testing.h"
#include "cuda/twin_machine_testing.h"
#include "model_checks.h"
#include "model_cold.h"
#include "model_machine.h"
#include "model_operations.h"
#include "model_parking.h"
#include "model_refusals.h"

namespace tierkv {
namespace {

using cuda::DeviceAttention;
using cuda::testing::Steps;
using cuda::testing::TwinMachine;

constexpr double kTolerance = 2e-2;  // the processor's own kernels round

std::shared_ptr<DeviceAttention> twin(uint64_t byte_limit = 0, size_t few_rows = cuda::kFewRows, bool keep_on_host = true) {
  return std::make_shared<DeviceAttention>(std::make_unique<TwinMachine>(), byte_limit, few_rows, keep_on_host);
}

// What is random about the machine of tests/model_based_test.cc, on the twin.
class OnATwin : public ::testing::TestWithParam<testing::MachineSetup> {};

TEST_P(OnATwin, BehavesLikeTheReference) {
  uint64_t seed = 7;
  for (const char c : GetParam().name) seed = seed * 131 + static_cast<unsigned char>(c);
  if (const char* given = std::getenv("TIERKV_SEED")) seed = std::strtoull(given, nullptr, 10);
  testing::MachineSetup setup = GetParam();
  const bool beside = setup.name.find("beside") != std::string::npos;  // what rows receive is the processor's
  const bool away = setup.name.find("away") != std::string::npos;      // host memory gives up what the device has
  std::shared_ptr<DeviceAttention> device = twin(0, beside ? SIZE_MAX : 0, !away);
  setup.backend = [&] { return device; };
  if (setup.there) seed += 1;
  // Prompts' decoded rows are halves: the sharper the query, the more it shows.
  setup.many_tolerance = 1e-2, setup.few_queries = cuda::kMostQueries;
  testing::Machine machine(setup, seed);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const uint64_t operations = 250;
#else
  const uint64_t operations = 900;
#endif
  ASSERT_TRUE(machine.run(operations)) << machine.report();
  EXPECT_GT(device->usage().launches, operations / 10);
  EXPECT_EQ(device->counts().weighed_rows != 0, !beside);
  EXPECT_EQ(device->counts().kept_alone != 0, device->counts().fetched != 0);
  EXPECT_TRUE(away || device->counts().kept_alone == 0);
  EXPECT_TRUE(!away || !setup.calibrated || device->counts().kept_alone > operations / 25);
  if (away) {
    std::printf("blocks away: %llu, fetched: %llu\n", static_cast<unsigned long long>(device->counts().kept_alone),
                static_cast<unsigned long long>(device->counts().fetched));
  }
  if (setup.there) std::printf("rows taken: %llu\n", static_cast<unsigned long long>(device->counts().rows_taken));
}

std::vector<testing::MachineSetup> setups() {
  const std::string small = "warm_block=16,archive_block=32,";
  const std::string eviction =
      small + "hot=16,warm=32,warm_codec=kivi8-g16,archive=kivi8-g16,sinks=4,protect_recent=8,evict_batch=8,observation=8,";
  std::vector<testing::MachineSetup> all = {
      {"tiers", small + "hot=16,warm=48,warm_codec=kivi8-g16,archive=kivi4-g16,sinks=4", 0.45},
      {"exact_bf16", small + "hot=8,warm=32,warm_codec=bf16,archive=bf16,sinks=2,hot_type=bf16", 0.0, 400},
      {"hot_all", "hot=all,threads=2", 0.0, 300},
      {"better_rows", small + "hot=16,warm=48,warm_codec=kivi8-g16,archive=kivi4-g16+top3/kivi4-g16+top5,sinks=4", 0.45},
      {"budget", small + "hot=16,warm=32,warm_codec=kivi8-g16,archive=kivi4-g16,budget=96KiB", 0.45},
      {"h2o", eviction + "max_seq_len=70,evict=h2o", 0.2, 200},
      {"better_rows_beside", small + "hot=16,warm=48,warm_codec=kivi8-g16,archive=kivi4-g16+top3/kivi4-g16+top5,sinks=4", 0.45},
      {"h2o_beside", eviction + "max_seq_len=70,evict=h2o", 0.2, 200},
      {"scissorhands", eviction + "max_seq_len=70,evict=scissorhands", 0.2, 200},
      {"ring", small + "hot=64,budget=64KiB,window=48,window_slack=4", 0.0},
      {"window", small + "hot=4,warm=16,warm_codec=fp16,archive=fp16,window=20,window_slack=4", 0.0, 400},
  };
  // Shapes of a fast path, so that runs of whole blocks stand on the list.
  all.push_back({"fast", "warm_block=64,archive_block=128,hot=16,warm=64,warm_codec=kivi8,archive=kivi2,sinks=4", 1.5, 900});
  all.back().more = [](CacheConfig& c) { c.num_layers = 1, c.head_dim = 128; };
  const auto calibrated = [&](const char* name, const std::string& settings) {
    all.push_back({name, small + settings, 3.0, 400});
    all.back().calibrated = true;
  };
  calibrated("klt", "hot=16,warm=32,warm_codec=kivi8-g16,archive=klt1.875,sinks=4");
  calibrated("parked_plain", "hot=16,warm=32,warm_codec=kivi8-g16,archive=kivi8-g16,sinks=4");
  for (const bool spill : {false, true}) {
    const std::string more = spill ? ",budget=128KiB,spill=exact" : "";
    all.push_back({spill ? "spill" : "cold",
                   small + "hot=16,warm=48,warm_codec=fp16,archive=kivi4-g16,sinks=4,cold_codec=fp16" + more, 0.45, 400});
    all.back().cold = true;
  }
  for (size_t i = 0, count = all.size(); i < count; ++i) {  // and with rows in the device's memory, or blocks there alone
    testing::MachineSetup there = all[i], away = all[i];
    there.name += "_there", there.there = true;
    all.push_back(there);
    if (all[i].name == "hot_all" || all[i].name == "ring") continue;  // they have no blocks
    away.name += "_away";
    if (const size_t at = away.settings.find("hot=16,warm=32,warm_codec=kivi8-g16,archive=kivi8-g16"); at != std::string::npos) {
      away.settings.replace(at, 14, "hot=8,warm=0");  // few tokens, and most of them archived
    }
    all.push_back(away);
    if (all[i].name == "tiers" || all[i].name == "klt") away.name += "_there", away.there = true, all.push_back(away);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Random, OnATwin, ::testing::ValuesIn(setups()), [](const auto& info) { return info.param.name; });

TEST(DeviceSteps, ManySequencesInOneCall) {
  for (const char* spec : {"hot=32,warm=0,archive=kivi2,sinks=4", "balanced", "fp16"}) {
    SCOPED_TRACE(spec);
    Steps steps(spec, twin(), 3);
    many_steps(steps, 60, kTolerance);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// The point of it all: a step between two blocks makes no descriptors and sends one row a head.
TEST(DeviceSteps, WhatStandsCostsNothingAgain) {
  auto made = std::make_unique<TwinMachine>(cuda::MachineFacts{132, true});  // so many that the tails' pieces stay small
  const TwinMachine& machine = *made;
  const auto device = std::make_shared<DeviceAttention>(std::move(made), 0);
  Steps steps("hot=32,warm=0,archive=kivi2,sinks=4", device, 5);
  steps.add(4 + 32 + 128 * 5 + 7), steps.add(4 + 32 + 128 * 3 + 70);
  steps.compare(kTolerance);
  const DeviceAttention::Counts before = device->counts();
  EXPECT_EQ(before.areas_made, 2u * Steps::kLayers * Steps::kKvHeads);
  EXPECT_LE(before.listed_views, 2u * Steps::kKvHeads * 3);
  EXPECT_EQ(before.loose_rows, 0u);
  constexpr uint32_t kSteps = 25;
  const cuda::Launch launch = machine.last;
  for (uint32_t i = 0; i < kSteps; ++i) {
    for (const SeqId id : steps.sequences()) steps.append(id, 1);
    steps.compare(kTolerance);
    // The launch is the same, down to its pointers, as long as hot rows need no more pieces of 64.
    EXPECT_EQ(machine.last.ctas, launch.ctas);
    EXPECT_EQ(machine.last.general_ctas, launch.general_ctas);
    EXPECT_EQ(machine.last.staged_ctas, launch.staged_ctas);
    EXPECT_EQ(machine.last.chunk_rows, launch.chunk_rows);
    EXPECT_EQ(machine.last.views, launch.views);
    EXPECT_EQ(machine.last.segments, launch.segments);
    EXPECT_EQ(machine.last.queries, launch.queries);
    EXPECT_EQ(machine.last.out, launch.out);
    EXPECT_EQ(machine.last.partial_out, launch.partial_out);
  }
  const DeviceAttention::Counts after = device->counts();
  EXPECT_EQ(after.areas_made, before.areas_made);
  EXPECT_EQ(after.rows_sent - before.rows_sent, kSteps * 2 * Steps::kLayers);
  EXPECT_EQ(after.listed_views, before.listed_views);
  // The second sequence gets a block: of its heads alone something is made anew.
  for (uint32_t i = 0; i < 50; ++i) steps.append(steps.sequences()[1], 1);
  steps.compare(kTolerance);
  EXPECT_EQ(device->counts().areas_made - after.areas_made, uint64_t{Steps::kLayers} * Steps::kKvHeads);
}

// Queries that do not see all of a sequence have it listed whole: more than the list's front has room for, beside a sequence that
// is settled.
TEST(DeviceSteps, AParcelThatOutgrowsItsRoomIsPlannedAgain) {
  const std::shared_ptr<DeviceAttention> device = twin();
  CacheConfig config;
  config.num_layers = 1, config.num_heads = 1, config.num_kv_heads = 1, config.head_dim = 32;
  ASSERT_TRUE(apply_spec("hot=16,warm=all,warm_codec=fp16,warm_block=16,archive_block=16,sinks=0", config).ok());
  auto cache = AdaptiveKVCache::create(config);
  ASSERT_TRUE(cache.ok());
  constexpr uint32_t kTokens = 16 * 400, kOthers = 16 * 269;
  std::vector<float> rows(size_t{kTokens} * 32);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>((i * 2654435761u) % 1000) / 500.0f - 1.0f;
  const RowsView view = RowsView::f32(rows.data(), kTokens, 1, 32), others = RowsView::f32(rows.data(), kOthers, 1, 32);
  const RowsView queries = RowsView::f32(rows.data(), 16, 1, 32);
  std::vector<float> out[2];
  const SeqId id = *(*cache)->add_sequence(), other = *(*cache)->add_sequence();
  ASSERT_TRUE((*cache)->append(id, 0, view, view).ok() && (*cache)->append(other, 0, others, others).ok());
  for (int c = 0; c < 2; ++c) {
    if (c == 1) (*cache)->attend_with(device);
    out[c].assign(2 * 16 * 32, NAN);
    AttentionItem items[] = {{id, queries, out[c].data()}, {other, queries, out[c].data() + 16 * 32}};
    items[1].first_position = kOthers - 200;
    ASSERT_TRUE((*cache)->attention(0, items).ok());
  }
  EXPECT_EQ(device->counts().planned_again, 1u);
  EXPECT_GT(device->counts().listed_views, 4096u);
  for (size_t i = 0; i < out[0].size(); ++i) ASSERT_NEAR(out[1][i], out[0][i], 2e-3) << i;
}

TEST(DeviceSteps, BlocksThatTheDeviceEncodesAreTheProcessors) {
  for (const char* spec : {"balanced", "kivi2", "kivi4", "deep", "int8", "hot=32,warm=64,warm_codec=rot3,archive=even3/mid3"}) {
    SCOPED_TRACE(spec);
    const std::shared_ptr<DeviceAttention> device = twin();
    std::vector<std::byte> images[2];
    for (int c = 0; c < 2; ++c) {
      CacheConfig config;
      config.num_layers = 1, config.num_heads = config.num_kv_heads = 3, config.head_dim = 64, config.threads = 2;
      ASSERT_TRUE(apply_spec(spec, config).ok());
      auto cache = AdaptiveKVCache::create(config);
      ASSERT_TRUE(cache.ok());
      if (c == 1) (*cache)->attend_with(device);
      std::vector<float> rows(size_t{900} * 3 * 64);
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>((i * 2654435761u) % 1000) / 500.0f - 1.0f;
      const RowsView view = RowsView::f32(rows.data(), 900, 3, 64);
      const SeqId id = *(*cache)->add_sequence();
      ASSERT_TRUE((*cache)->append(id, 0, view, view).ok());
      auto image = (*cache)->freeze(id);
      ASSERT_TRUE(image.ok());
      images[c] = std::move(*image);
    }
    EXPECT_GT(device->counts().encoded, 0u);
    EXPECT_TRUE(images[0] == images[1]);
  }
}

// A device that attends has the hot rows and the warm blocks: what becomes of them is coded without a byte of them being sent.
TEST(DeviceSteps, WhatGraduatesAndIsDemotedIsReadWhereItIs) {
  for (const char* codecs :
       {"warm_codec=even4,archive=kivi2", "warm_codec=rot4,archive=rot2", "warm_codec=kivi4,archive=even3/mid3"}) {
    SCOPED_TRACE(codecs);
    const std::shared_ptr<DeviceAttention> device = twin();
    Steps steps("hot=32,warm=64,warm_block=64,archive_block=128,sinks=4," + std::string(codecs), device, 11);
    const SeqId id = steps.add(4 + 32 + 100);
    steps.compare(kTolerance);
    const DeviceAttention::Counts before = device->counts();
    const auto tokens = [&] { return steps.device_cache().memory_usage().tier[static_cast<int>(Tier::archive)].tokens; };
    ASSERT_EQ(tokens(), 0u);
    for (uint32_t i = 0; i < 240; ++i) {
      steps.append(id, 1);
      if (i % 10 == 0) steps.compare(kTolerance);
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_GE(tokens(), 2u * 128 * Steps::kLayers * Steps::kKvHeads);
    EXPECT_GT(device->counts().encoded, before.encoded);
    EXPECT_EQ(device->counts().encode_bytes, before.encode_bytes);
    const auto here = steps.host_cache().freeze(id), there = steps.device_cache().freeze(id);
    ASSERT_TRUE(here.ok() && there.ok());
    EXPECT_TRUE(*here == *there);
  }
}

TEST(DeviceSteps, BlocksThatNothingStandsOnMakeRoom) {
  // 32 MiB hold 512 blocks of FP16 keys and values of 128 tokens: not those of all sequences together.
  const std::shared_ptr<DeviceAttention> device = twin(uint64_t{32} << 20);
  Steps steps("hot=16,warm=all,warm_codec=fp16,warm_block=128,archive_block=128,sinks=0", device, 9);
  std::vector<SeqId> ids;
  for (int round = 0; round < 4; ++round) {
    const SeqId id = steps.add(128 * 60 + 20);  // 240 blocks in both layers
    steps.compare(kTolerance);
    if (round == 0) steps.append(id, 1), steps.compare(kTolerance);
    ASSERT_FALSE(::testing::Test::HasFatalFailure());
    steps.remove(id);
  }
  EXPECT_LE(device->usage().block_bytes, uint64_t{32} << 20);
  EXPECT_GT(device->usage().uploads, 512u);
}

}  // namespace
}  // namespace tierkv
