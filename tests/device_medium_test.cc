// Blocks whose bytes only the device has (cuda::Options::keep_on_host = false), on a device's twin: the same answers and the same
// snapshots in less host memory, and what happens when the device is full, fails or goes.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/folder_testing.h"
#include "cuda/device_attention.h"
#include "cuda/steps_testing.h"
#include "cuda/twin_machine_testing.h"
#include "inspect.h"

namespace tierkv {
namespace {

using cuda::DeviceAttention;
using cuda::testing::Steps;
using cuda::testing::TwinMachine;

constexpr double kTolerance = 2e-2;  // the processor's own kernels round
constexpr uint64_t kSlab = uint64_t{32} << 20;

struct Twin {
  explicit Twin(bool lazy = false, uint64_t byte_limit = 0, size_t few_rows = cuda::kFewRows) {
    auto made = std::make_unique<TwinMachine>(cuda::MachineFacts{7, true}, 0, lazy);
    machine = made.get();
    device = std::make_shared<DeviceAttention>(std::move(made), byte_limit, few_rows, false);
  }
  TwinMachine* machine;
  std::shared_ptr<DeviceAttention> device;
};

uint64_t used(const AdaptiveKVCache& cache) { return cache.memory_usage().total_bytes - cache.memory_usage().free_bytes; }

bool better_rows(const std::string& spec) { return spec.find("+top") != std::string::npos; }

// The two caches of `steps` have the same tokens to the bit, whoever has the bytes. `spec`: where rows are kept better, what they
// received is in a snapshot too, and a device adds that up in another order.
void expect_same(Steps& steps, const std::string& spec = "") {
  for (const SeqId id : steps.sequences()) {
    const auto here = steps.host_cache().freeze(id), there = steps.device_cache().freeze(id);
    ASSERT_TRUE(here.ok() && there.ok()) << there.status().to_string();
    EXPECT_TRUE(better_rows(spec) || *here == *there);
    const Status verified = steps.device_cache().verify(id);
    EXPECT_TRUE(verified.ok()) << verified.to_string();
  }
  EXPECT_EQ(testing::books_problem(steps.device_cache()), "");
}

void expect_books(Steps& steps, const Twin& twin) {
  const MemoryStats m = steps.device_cache().memory_usage();
  const cuda::Usage usage = twin.device->usage();
  EXPECT_EQ(m.device_bytes, usage.only_bytes);
  EXPECT_GE(usage.blocks, usage.only_blocks);
  uint64_t tokens = 0, bytes = 0;
  for (const SeqId id : steps.sequences()) {
    const MemoryStats one = *steps.device_cache().memory_usage(id);
    tokens += one.device_tokens, bytes += one.device_bytes;
  }
  EXPECT_EQ(tokens, m.device_tokens);
  EXPECT_GE(bytes, m.device_bytes / 2);
}

class DeviceMedium : public ::testing::TestWithParam<bool> {};

TEST_P(DeviceMedium, HostMemoryGivesUpWhatTheDeviceHas) {
  for (const char* spec : {"hot=32,warm=0,archive=kivi2,sinks=4", "hot=32,warm=64,warm_codec=even4,archive=rot2+top4,sinks=4",
                           "hot=16,warm=all,warm_codec=fp16,warm_block=128,archive_block=128"}) {
    SCOPED_TRACE(spec);
    const Twin twin(GetParam());
    Steps steps(spec, twin.device, 3);
    const SeqId id = steps.add(300);
    EXPECT_EQ(steps.device_cache().memory_usage().device_tokens, 0u) << "nobody has looked yet";
    for (int i = 0; i < 6; ++i) steps.compare(kTolerance), steps.append(id, 200);
    steps.compare(kTolerance);
    const MemoryStats here = steps.host_cache().memory_usage(), there = steps.device_cache().memory_usage();
    EXPECT_GT(there.device_tokens, 1100u * Steps::kLayers * Steps::kKvHeads);
    EXPECT_LT(3 * used(steps.device_cache()), 2 * used(steps.host_cache())) << "hot and warm rows stay";
    EXPECT_EQ(there.fp16_bytes, here.fp16_bytes);
    for (int t = 0; t < kNumTiers; ++t) EXPECT_EQ(there.tier[t].tokens, here.tier[t].tokens);
    expect_books(steps, twin);
    const uint64_t uploads = twin.device->usage().uploads;
    for (const uint32_t count : {1u, 5u, 40u}) steps.compare(kTolerance, count);
    EXPECT_EQ(twin.device->usage().uploads, uploads);
    expect_same(steps, spec);
    const std::vector<std::byte> away = *steps.device_cache().freeze(id);
    std::vector<uint32_t> positions;
    for (uint32_t p = 0; p < steps.length(id); p += 37) positions.push_back(p);
    std::vector<float> a(positions.size() * Steps::kKvHeads * Steps::kDim), b(a.size());
    ASSERT_TRUE(steps.host_cache().get(id, 1, positions, a.data(), nullptr).ok());
    ASSERT_TRUE(steps.device_cache().get(id, 1, positions, b.data(), nullptr).ok());
    EXPECT_TRUE(better_rows(spec) || a == b);
    ASSERT_TRUE(steps.device_cache().attend_here().ok());
    EXPECT_TRUE(away == *steps.device_cache().freeze(id));
    EXPECT_EQ(steps.device_cache().memory_usage().device_tokens, 0u);
    EXPECT_EQ(twin.device->usage().only_blocks, 0u);
    EXPECT_EQ(used(steps.device_cache()), used(steps.host_cache()));
    steps.compare(better_rows(spec) ? kTolerance : 1e-6);
    expect_same(steps, spec);
  }
}

TEST_P(DeviceMedium, ManyStepsGiveTheSameAnswers) {
  for (const char* spec : {"hot=32,warm=0,archive=kivi2,sinks=4", "balanced", "hot=32,warm=64,archive=rot2+top4/rot2+top3",
                           "hot=16,warm=all,warm_codec=int8,warm_block=64,archive_block=64"}) {
    SCOPED_TRACE(spec);
    const Twin twin(GetParam());
    Steps steps(spec, twin.device, 3);
    many_steps(steps, 12, kTolerance);
    if (::testing::Test::HasFatalFailure()) return;
    expect_books(steps, twin);
    expect_same(steps, spec);
    for (const SeqId id : std::vector<SeqId>(steps.sequences())) steps.remove(id);
    EXPECT_EQ(twin.device->usage().only_blocks, 0u) << "what nobody refers to is not held";
    EXPECT_EQ(twin.device->usage().only_bytes, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Twin, DeviceMedium, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "lazy" : "eager"; });

constexpr const char* kSpec = "hot=32,warm=0,archive=kivi2,sinks=4";

TEST(DeviceMedium, ForksShareWhatIsThereAndSoDoesWhatIsLeft) {
  const Twin twin;
  Steps steps(kSpec, twin.device, 5);
  const SeqId id = steps.add(1000);
  steps.compare(kTolerance);
  const uint64_t only = twin.device->usage().only_blocks;
  EXPECT_GT(only, 0u);
  const SeqId fork = steps.fork(id);
  steps.append(fork, 200), steps.truncate(id, 500);
  steps.compare(kTolerance);
  expect_same(steps);
  steps.remove(id);
  steps.compare(kTolerance);
  EXPECT_GE(twin.device->usage().only_blocks, only);
  expect_same(steps);
  steps.fork(fork);  // shared blocks come back once, for both
  ASSERT_TRUE(steps.device_cache().attend_here().ok());
  EXPECT_EQ(used(steps.device_cache()), used(steps.host_cache()));
  steps.compare(1e-6);
}

TEST(DeviceMedium, SavesAndLoadsTheSameFile) {
  const TestFolder folder;
  const Twin twin;
  Steps steps(kSpec, twin.device, 5);
  const SeqId id = steps.add(900);
  steps.compare(kTolerance);
  ASSERT_TRUE(steps.device_cache().save(id, folder.file("a.tkv")).ok());
  ASSERT_TRUE(steps.host_cache().save(id, folder.file("b.tkv")).ok());
  EXPECT_EQ(std::filesystem::file_size(folder.file("a.tkv")), std::filesystem::file_size(folder.file("b.tkv")));
  const auto again = steps.device_cache().load(folder.file("a.tkv"));
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  const uint64_t uploads = twin.device->usage().uploads;
  std::vector<float> queries(size_t{Steps::kHeads} * Steps::kDim, 0.5f), out(queries.size()), of_first(queries.size());
  const RowsView view = RowsView::f32(queries.data(), 1, Steps::kHeads, Steps::kDim);
  ASSERT_TRUE(steps.device_cache().attention(*again, 0, view, out.data()).ok());
  ASSERT_TRUE(steps.device_cache().attention(id, 0, view, of_first.data()).ok());
  EXPECT_EQ(out, of_first);
  EXPECT_EQ(twin.device->usage().uploads, uploads) << "the same blocks are there";
}

// What the processor does is done on bytes that come for it.
TEST(DeviceMedium, TheProcessorGetsTheBytesItReads) {
  for (const size_t few_rows : {size_t{0}, SIZE_MAX}) {
    const Twin twin(true, 0, few_rows);
    Steps steps("hot=16,warm=32,warm_block=16,archive_block=32,archive=kivi4-g16,evict=h2o,max_seq_len=400", twin.device, 7);
    steps.add(300);
    for (uint32_t i = 0; i < 12; ++i) {
      steps.append(steps.sequences()[0], 15);
      steps.compare(kTolerance, i % 3 == 0 ? 20 : 1);
      ASSERT_FALSE(::testing::Test::HasFatalFailure());
    }
    EXPECT_GT(steps.device_cache().memory_usage().device_tokens, 0u);
    EXPECT_GT(steps.device_cache().memory_usage().evicted, 0u);
    EXPECT_TRUE(steps.device_cache().verify(steps.sequences()[0]).ok());
    EXPECT_GT(twin.machine->fetches, 0u);
  }
}

TEST(DeviceMedium, SequencesThatDoNotFitTakeTurns) {
  // 32 MiB hold 512 blocks of FP16 keys and values of 128 tokens: two of the three sequences.
  const Twin twin(false, kSlab);
  Steps steps("hot=16,warm=all,warm_codec=fp16,warm_block=128,archive_block=128,sinks=0", twin.device, 9);
  std::vector<float> queries(size_t{Steps::kHeads} * Steps::kDim, 0.25f), out(queries.size()), here(queries.size());
  const RowsView view = RowsView::f32(queries.data(), 1, Steps::kHeads, Steps::kDim);
  std::vector<SeqId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(steps.add(128 * 50 + 20));  // 200 blocks in both layers
  for (int round = 0; round < 2; ++round) {
    for (const SeqId id : ids) {
      for (uint32_t l = 0; l < Steps::kLayers; ++l) {
        const Status status = steps.device_cache().attention(id, l, view, out.data());
        ASSERT_TRUE(status.ok()) << status.to_string();
        ASSERT_TRUE(steps.host_cache().attention(id, l, view, here.data()).ok());
        for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], here[i], 2e-3) << i;
      }
    }
    EXPECT_GT(steps.device_cache().memory_usage().device_tokens, 0u);
  }
  EXPECT_LE(twin.device->usage().block_bytes, kSlab);
  expect_same(steps);
  for (int i = 0; i < 5; ++i) steps.append(ids[0], 6000);  // one that alone is too long: it is refused, and nothing is lost
  EXPECT_EQ(steps.device_cache().attention(ids[0], 0, view, out.data()).code(), StatusCode::resource_exhausted);
  expect_same(steps);
}

TEST(DeviceMedium, ABudgetThatTheyDoNotFitKeepsTheDeviceAttached) {
  const Twin twin;
  CacheConfig config;
  config.num_layers = 1, config.num_heads = config.num_kv_heads = 2, config.head_dim = 128, config.byte_budget = 1 << 20;
  ASSERT_TRUE(apply_spec("hot=32,warm=0,archive=int8,archive_block=128,sinks=0", config).ok());
  auto cache = AdaptiveKVCache::create(config).value();
  cache->attend_with(twin.device);
  std::vector<float> rows(size_t{128} * 2 * 128), out(256);
  const RowsView query = RowsView::f32(rows.data(), 1, 2, 128);
  std::vector<SeqId> ids;
  for (int s = 0; s < 2; ++s) {  // together more than the budget
    ids.push_back(*cache->add_sequence());
    for (int piece = 0; piece < 12; ++piece) {
      for (size_t i = 0; i < rows.size(); ++i)
        rows[i] = static_cast<float>((i * 2654435761u + piece * 77 + s) % 1000) / 500.0f - 1.0f;
      const RowsView view = RowsView::f32(rows.data(), 128, 2, 128);
      const Status status = cache->append(ids[s], 0, view, view);
      ASSERT_TRUE(status.ok()) << status.to_string();
      ASSERT_TRUE(cache->attention(ids[s], 0, query, out.data()).ok());
    }
  }
  EXPECT_GT(cache->memory_usage().device_bytes, config.byte_budget);
  EXPECT_LE(cache->memory_usage().peak_bytes, config.byte_budget);
  const Status refused = cache->attend_here();
  EXPECT_EQ(refused.code(), StatusCode::resource_exhausted);
  EXPECT_NE(refused.message().find("byte_budget"), std::string::npos) << refused.message();
  for (const SeqId id : ids) {
    EXPECT_TRUE(cache->attention(id, 0, query, out.data()).ok());
    EXPECT_TRUE(cache->verify(id).ok());
  }
  ASSERT_TRUE(cache->remove(ids[0]).ok());
  const Status now = cache->attend_here();
  ASSERT_TRUE(now.ok()) << now.to_string();
  EXPECT_TRUE(cache->verify(ids[1]).ok());
  EXPECT_TRUE(cache->attention(ids[1], 0, query, out.data()).ok());
}

TEST(DeviceMedium, ACopyThatFailsIsSaidAndLosesNothing) {
  const Twin twin;
  Steps steps(kSpec, twin.device, 5);
  const SeqId id = steps.add(600);
  steps.compare(kTolerance);
  const uint32_t old = 200;
  std::vector<float> row(size_t{Steps::kKvHeads} * Steps::kDim);
  for (uint64_t failing = 1; failing < 4; ++failing) {
    twin.machine->fetches_that_fail = failing;
    EXPECT_EQ(steps.device_cache().freeze(id).status().code(), StatusCode::io_error);
    twin.machine->fetches_that_fail = failing;
    EXPECT_EQ(steps.device_cache().verify(id).code(), StatusCode::data_loss);
  }
  twin.machine->fetches_that_fail = 1;
  EXPECT_EQ(steps.device_cache().get(id, 0, {&old, 1}, row.data(), nullptr).code(), StatusCode::data_loss);
  twin.machine->fetches_that_fail = 0;
  EXPECT_TRUE(steps.device_cache().get(id, 0, {&old, 1}, row.data(), nullptr).ok());
  // Sends that fail leave blocks in host memory.
  for (uint64_t failing = 1; failing < 5; ++failing) {
    steps.append(id, 130);
    twin.machine->sends_that_fail = failing;
    std::vector<float> queries(size_t{Steps::kHeads} * Steps::kDim, 0.5f), out(queries.size());
    (void)steps.device_cache().attention(id, 0, RowsView::f32(queries.data(), 1, Steps::kHeads, Steps::kDim), out.data());
    twin.machine->sends_that_fail = 0;
    steps.compare(kTolerance);
  }
  expect_same(steps);
}

TEST(DeviceMedium, BytesThatChangedThereAreNeverHandedOut) {
  const Twin twin;
  Steps steps("hot=32,warm=0,archive=kivi2,sinks=0", twin.device, 5);
  const SeqId id = steps.add(600);
  steps.compare(kTolerance);
  const auto* const keys = const_cast<uint8_t*>(twin.machine->last.views[4096].keys);  // the first area, behind the list's front
  ASSERT_NE(keys, nullptr);
  const_cast<uint8_t*>(keys)[5] ^= 1;
  EXPECT_EQ(steps.device_cache().verify(id).code(), StatusCode::data_loss);
  EXPECT_EQ(steps.device_cache().freeze(id).status().code(), StatusCode::data_loss);
  EXPECT_EQ(steps.device_cache().attend_here().code(), StatusCode::data_loss);
  EXPECT_EQ(steps.device_cache().freeze(id).status().code(), StatusCode::data_loss) << "for good";
  EXPECT_EQ(testing::books_problem(steps.device_cache()), "");
}

TEST(DeviceMedium, ALostDeviceLosesWhatItHadAlone) {
  const Twin twin;
  Steps steps(kSpec, twin.device, 5);
  const SeqId id = steps.add(600), small = steps.add(30);
  steps.compare(kTolerance);
  std::vector<float> queries(size_t{Steps::kHeads} * Steps::kDim, 0.5f), out(queries.size());
  const RowsView view = RowsView::f32(queries.data(), 1, Steps::kHeads, Steps::kDim);
  AdaptiveKVCache& cache = steps.device_cache();
  twin.machine->lost = true;
  EXPECT_EQ(cache.attention(id, 0, view, out.data()).code(), StatusCode::io_error);
  EXPECT_EQ(cache.freeze(id).status().code(), StatusCode::io_error);
  const Status gone = cache.attend_here();
  EXPECT_EQ(gone.code(), StatusCode::data_loss);
  EXPECT_NE(gone.message().find("the device is lost"), std::string::npos) << gone.message();
  EXPECT_EQ(cache.attention(id, 0, view, out.data()).code(), StatusCode::data_loss);
  EXPECT_EQ(cache.freeze(id).status().code(), StatusCode::data_loss);
  EXPECT_EQ(cache.verify(id).code(), StatusCode::data_loss);
  EXPECT_TRUE(cache.attention(small, 0, view, out.data()).ok());
  EXPECT_TRUE(cache.verify(small).ok());
  // Another device changes nothing of that, and serves the rest.
  const Twin other;
  cache.attend_with(other.device);
  EXPECT_EQ(cache.attention(id, 0, view, out.data()).code(), StatusCode::data_loss);
  EXPECT_TRUE(cache.attention(small, 0, view, out.data()).ok());
  ASSERT_TRUE(cache.truncate(id, 4).ok());
  EXPECT_TRUE(cache.attention(id, 0, view, out.data()).ok()) << "what is left was never away";
  EXPECT_TRUE(cache.remove(id).ok());
  EXPECT_EQ(testing::books_problem(cache), "");
}

TEST(DeviceMedium, ACacheThatGoesFirstLetsGoOfEverything) {
  const Twin twin;
  {
    Steps steps(kSpec, twin.device, 5);
    steps.add(600);
    steps.compare(kTolerance);
    EXPECT_GT(twin.device->usage().only_blocks, 0u);
  }
  EXPECT_EQ(twin.device->usage().only_blocks, 0u);
}

}  // namespace
}  // namespace tierkv
