// A cache on a device's twin whose caller has rows, queries and results in the device's memory. The twin's memory is the
// processor's, and a lazy one does nothing before somebody waits: what is looked at too early is not there.
#include <gtest/gtest.h>

#include <cstring>
#include <list>

#include "cuda/device_attention.h"
#include "cuda/steps_testing.h"
#include "cuda/twin_machine_testing.h"

namespace tierkv {
namespace {

using cuda::DeviceAttention;
using cuda::testing::Steps;
using cuda::testing::TwinMachine;
using cuda::testing::TypedRows;

constexpr double kTolerance = 2e-2;  // the processor's own kernels round
constexpr uint32_t kHeads = Steps::kHeads, kKvHeads = Steps::kKvHeads, kDim = Steps::kDim;

struct Twin {
  explicit Twin(bool lazy, uint64_t memory = 0) {
    auto made = std::make_unique<TwinMachine>(cuda::MachineFacts{7, true}, memory, lazy);
    machine = made.get();
    device = std::make_shared<DeviceAttention>(std::move(made), 0);
  }
  TwinMachine* machine;
  std::shared_ptr<DeviceAttention> device;
};

class TwinMemory final : public cuda::testing::RemoteMemory {
 public:
  explicit TwinMemory(const DeviceAttention& device) : device_(device) {}
  void* send(const void* from, size_t bytes) override {
    void* const to = make(bytes);
    std::memcpy(to, from, bytes);
    return to;
  }
  void* make(size_t bytes) override { return pieces_.emplace_back((bytes + 3) / 4, NAN).data(); }
  void fetch(void* to, const void* from, size_t bytes) override {
    const Status status = device_.check();
    EXPECT_TRUE(status.ok()) << status.message();
    std::memcpy(to, from, bytes);
  }
  void forget() override {
    EXPECT_TRUE(device_.check().ok());
    for (std::vector<float>& piece : pieces_) std::fill(piece.begin(), piece.end(), NAN);
    pieces_.clear();
  }
  void* stream() override { return &pieces_; }

 private:
  const DeviceAttention& device_;
  std::list<std::vector<float>> pieces_;
};

class DeviceRows : public ::testing::TestWithParam<bool> {};

TEST_P(DeviceRows, GiveTheSameResults) {
  for (const char* spec :
       {"hot=32,warm=0,archive=kivi2,sinks=4", "balanced", "fp16", "hot=16,warm=64,archive=rot4,hot_type=bf16"}) {
    SCOPED_TRACE(spec);
    const Twin twin(GetParam());
    TwinMemory memory(*twin.device);
    Steps steps(spec, twin.device, 3, &memory);
    many_steps(steps, 30, kTolerance);
    if (::testing::Test::HasFatalFailure()) return;
    EXPECT_EQ(twin.device->usage().on_processor, 0u);
  }
}

TEST_P(DeviceRows, GiveTheSameResultsWithSmallHeads) {
  for (const uint32_t dim : {32u, 48u}) {
    const Twin twin(GetParam());
    TwinMemory memory(*twin.device);
    Steps steps("fp16", twin.device, dim, &memory, dim);
    many_steps(steps, 60, kTolerance);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Twin, DeviceRows, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "lazy" : "eager"; });

TEST(DeviceRows, WhatTheDeviceDoesNotDoComesDownAndGoesUp) {
  const Twin twin(true);
  TwinMemory memory(*twin.device);
  Steps steps("hot=32,warm=0,archive=kivi12,sinks=4", twin.device, 5, &memory);  // codes that no device reads
  steps.add(300), steps.add(77);
  steps.compare(kTolerance, 20);
  EXPECT_EQ(twin.device->usage().on_processor, 1u * Steps::kLayers) << "of the one that has an archive";
  steps.compare(kTolerance, 16);
  EXPECT_EQ(twin.device->usage().on_processor, 2u * Steps::kLayers);
}

TEST(DeviceRows, PromptsInTheDevicesMemoryAreReadThere) {
  for (const bool lazy : {false, true}) {
    const Twin twin(lazy);
    TwinMemory memory(*twin.device);
    Steps steps("hot=32,warm=0,archive=kivi2,sinks=4", twin.device, 5, &memory);
    steps.add(300), steps.add(77);
    steps.compare(kTolerance, 20);
    steps.compare(kTolerance, 70);
    steps.compare(kTolerance, 16);
    EXPECT_EQ(twin.device->usage().on_processor, 0u);
  }
}

// One sequence of a small cache beside a twin.
struct Small {
  explicit Small(const Twin& twin, const char* spec = "hot=16,warm=32,warm_block=16,archive_block=32,archive=kivi4-g16") {
    CacheConfig config;
    config.num_layers = 2, config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
    EXPECT_TRUE(apply_spec(spec, config).ok());
    cache = AdaptiveKVCache::create(config).value();
    cache->attend_with(twin.device);
  }
  static RowsView there(RowsView rows, void* stream = nullptr) {
    rows.place = MemoryPlace::device, rows.ready = stream;
    return rows;
  }
  static std::vector<float> rows(uint32_t tokens, uint32_t heads, float scale = 1.0f) {
    std::vector<float> out(size_t{tokens} * heads * kDim);
    for (size_t i = 0; i < out.size(); ++i) out[i] = scale * (static_cast<float>((i * 2654435761u) % 1000) / 500.0f - 1.0f);
    return out;
  }
  std::unique_ptr<AdaptiveKVCache> cache;
};

TEST(DeviceRows, AnAttentionCallDoesNotWait) {
  const Twin twin(true);
  Small small(twin);
  const std::vector<float> rows = Small::rows(200, kKvHeads), queries = Small::rows(1, kHeads);
  const SeqId seq = *small.cache->add_sequence();
  const RowsView view = Small::there(RowsView::f32(rows.data(), 200, kKvHeads, kDim));
  ASSERT_TRUE(small.cache->append(seq, 0, view, view).ok());
  std::vector<float> out(queries.size(), NAN);
  const uint64_t waits = twin.machine->waits;
  for (int i = 0; i < 300; ++i) {  // more calls than slots are kept
    ASSERT_TRUE(small.cache->attention(seq, 0, Small::there(RowsView::f32(queries.data(), 1, kHeads, kDim)), out.data()).ok());
  }
  EXPECT_EQ(twin.machine->waits, waits);
  EXPECT_EQ(twin.machine->followed, (cuda::StreamName{true, nullptr}));
  ASSERT_TRUE(twin.device->check().ok());
  std::vector<float> here(queries.size(), NAN);
  ASSERT_TRUE(small.cache->attention(seq, 0, RowsView::f32(queries.data(), 1, kHeads, kDim), here.data()).ok());
  for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], here[i]) << i;
}

// Decoding: rows go to the device's strips, and the processor gets them when it has time. What was kept of them is the same.
TEST(DeviceRows, StepsOfDecodingDoNotWait) {
  const Twin twin(true);
  TwinMemory memory(*twin.device);
  Small small(twin), other(twin);
  other.cache->attend_with(nullptr);
  constexpr uint32_t kMany = 3, kSteps = 150;
  const size_t size = size_t{kHeads} * kDim, row = size_t{kKvHeads} * kDim;
  std::vector<SeqId> ids;
  const std::vector<float> prompt = Small::rows(40, kKvHeads), queries = Small::rows(kMany, kHeads);
  for (uint32_t i = 0; i < kMany; ++i) {
    ids.push_back(*small.cache->add_sequence());
    ASSERT_EQ(*other.cache->add_sequence(), ids.back());
    for (uint32_t layer = 0; layer < 2; ++layer) {
      for (auto* cache : {small.cache.get(), other.cache.get()}) {
        const RowsView view = RowsView::f32(prompt.data(), 30 + i, kKvHeads, kDim);
        ASSERT_TRUE(cache->append(ids[i], layer, view, view).ok());
      }
    }
  }
  std::vector<float> out(kMany * size), here(out.size());
  uint64_t waits = 0;
  for (uint32_t step = 0; step < kSteps; ++step) {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      std::vector<float> rows = Small::rows(kMany, kKvHeads, 1.0f + 0.01f * static_cast<float>(step));
      const auto* there = static_cast<const float*>(memory.send(rows.data(), rows.size() * sizeof(float)));
      std::vector<AppendItem> items;
      std::vector<AttentionItem> asked;
      for (uint32_t i = 0; i < kMany; ++i) {
        const RowsView view = RowsView::f32(rows.data() + i * row, 1, kKvHeads, kDim);
        ASSERT_TRUE(other.cache->append(ids[i], layer, view, view).ok());
        const RowsView query = RowsView::f32(queries.data() + i * size, 1, kHeads, kDim);
        ASSERT_TRUE(other.cache->attention(ids[i], layer, query, here.data() + i * size).ok());
        const RowsView mine = Small::there(RowsView::f32(there + i * row, 1, kKvHeads, kDim));
        items.push_back({ids[i], mine, mine, {}});
        asked.push_back({ids[i], Small::there(query), out.data() + i * size});
      }
      const Status appended = small.cache->append_many(layer, items), attended = small.cache->attention(layer, asked);
      ASSERT_TRUE(appended.ok() && attended.ok()) << appended.message() << attended.message();
    }
    EXPECT_EQ(*small.cache->length(ids[0]), 30 + step + 1);
    // The first has no strips yet. One that codes blocks waits for their bytes, and for nothing else.
    if (step != 0) {
      EXPECT_EQ(twin.machine->waits, waits);
    }
    waits = twin.machine->waits;
  }
  EXPECT_EQ(twin.machine->waits_aside, twin.machine->encodes);
  EXPECT_GT(twin.machine->encodes, 20u);
  EXPECT_EQ(twin.device->counts().rows_taken, 2u * kMany * (kSteps - 1));
  for (const SeqId id : ids) {
    const auto mine = small.cache->freeze(id), theirs = other.cache->freeze(id);
    ASSERT_TRUE(mine.ok() && theirs.ok());
    EXPECT_TRUE(*mine == *theirs);
  }
  ASSERT_TRUE(twin.device->check().ok());
  for (size_t c = 0; c < out.size(); ++c) ASSERT_NEAR(out[c], here[c], 5e-3);
}

// What all sequences are due to code is one launch, and one trip for its bytes.
TEST(DeviceRows, SequencesOfOneLengthAreCodedInOneLaunch) {
  const Twin twin(true);
  TwinMemory memory(*twin.device);
  Small small(twin);  // warm blocks of 16, archive blocks of 32
  constexpr uint32_t kMany = 8, kSteps = 64;
  const std::vector<float> prompt = Small::rows(100, kKvHeads), rows = Small::rows(kMany, kKvHeads),
                           queries = Small::rows(1, kHeads);
  const auto* there = static_cast<const float*>(memory.send(rows.data(), rows.size() * sizeof(float)));
  std::vector<float> out(kMany * size_t{kHeads} * kDim);
  std::vector<AppendItem> items;
  std::vector<AttentionItem> asked;
  for (uint32_t i = 0; i < kMany; ++i) {
    const SeqId id = *small.cache->add_sequence();
    const RowsView view = Small::there(RowsView::f32(there + i * size_t{kKvHeads} * kDim, 1, kKvHeads, kDim));
    items.push_back({id, view, view, {}});
    asked.push_back({id, Small::there(RowsView::f32(queries.data(), 1, kHeads, kDim)), out.data() + i * size_t{kHeads} * kDim});
  }
  const RowsView whole = RowsView::f32(prompt.data(), 100, kKvHeads, kDim);
  std::vector<AppendItem> first = items;
  for (AppendItem& item : first) item.keys = item.values = whole;
  ASSERT_TRUE(small.cache->append_many(0, first).ok());
  uint64_t most = 0;
  const uint64_t before = twin.machine->encodes, bytes = twin.device->counts().encode_bytes;
  for (uint32_t step = 0; step < kSteps; ++step) {
    const uint64_t encodes = twin.machine->encodes;
    ASSERT_TRUE(small.cache->attention(0, asked).ok());
    ASSERT_TRUE(small.cache->append_many(0, items).ok());
    most = std::max(most, twin.machine->encodes - encodes);
  }
  EXPECT_EQ(most, 2u) << "a warm block of each head, and every second time an archive one";
  EXPECT_EQ(twin.machine->encodes - before, kSteps / 16 + kSteps / 32);
  EXPECT_GT(twin.device->counts().rows_taken, uint64_t{kMany} * (kSteps - 2));
  // Rows of tails are read where the device has them, and so are the blocks that it has attended to.
  EXPECT_EQ(twin.device->counts().encode_bytes, bytes);
  EXPECT_TRUE(twin.machine->wait().ok());  // before the rows' memory goes
}

// Layer after layer, as a model goes: several tokens are guessed, attended from, and some taken back.
TEST(DeviceRows, GuessesOfSeveralTokensAreTakenBack) {
  constexpr uint32_t kDims = 32, kLayers = 3;
  const Twin twin(true);
  TwinMemory memory(*twin.device);
  std::unique_ptr<AdaptiveKVCache> caches[2];
  for (int c = 0; c < 2; ++c) {
    CacheConfig config;
    config.num_layers = kLayers, config.num_heads = 4, config.num_kv_heads = 2, config.head_dim = kDims;
    ASSERT_TRUE(apply_spec("fp16", config).ok());
    caches[c] = AdaptiveKVCache::create(config).value();
    ASSERT_TRUE(caches[c]->add_sequence().ok());
  }
  caches[1]->attend_with(twin.device);
  std::mt19937 rng(4);
  std::normal_distribution<float> normal;
  const auto noise = [&](size_t n) {
    std::vector<float> out(n);
    for (float& x : out) x = normal(rng);
    return out;
  };
  uint32_t length = 0;
  for (int step = 0; step < 60; ++step) {
    const uint32_t tokens = step == 0 ? 36 : 1 + static_cast<uint32_t>(rng() % 6);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const TypedRows keys(noise(size_t{tokens} * 2 * kDims), DType::f32, tokens, 2, kDims);
      const TypedRows values(noise(size_t{tokens} * 2 * kDims), DType::f32, tokens, 2, kDims);
      const TypedRows queries(noise(size_t{tokens} * 4 * kDims), DType::f32, tokens, 4, kDims);
      std::vector<float> out[2];
      for (int c = 0; c < 2; ++c) {
        auto* const there = c == 1 ? &memory : nullptr;
        out[c].assign(size_t{tokens} * 4 * kDims, NAN);
        AppendItem item{1, keys.in(there), values.in(there), {}};
        ASSERT_TRUE(caches[c]->append_many(layer, {&item, 1}).ok()) << item.status.message();
        float* const to = there ? static_cast<float*>(there->make(out[c].size() * sizeof(float))) : out[c].data();
        ASSERT_TRUE(caches[c]->attention(1, layer, queries.in(there), to).ok());
        if (there && rng() % 2 == 0) there->fetch(out[c].data(), to, out[c].size() * sizeof(float));
        else if (there) out[c].clear();
      }
      for (size_t i = 0; i < out[1].size(); ++i) ASSERT_NEAR(out[1][i], out[0][i], 5e-3) << step << " " << layer << " " << i;
    }
    length += tokens;
    if (tokens > 1) {
      length -= static_cast<uint32_t>(rng() % tokens);
      for (auto& cache : caches) ASSERT_TRUE(cache->truncate(1, length).ok());
    }
    if (step % 5 == 0) memory.forget();
  }
  EXPECT_GT(twin.device->counts().rows_taken, 30u);
  EXPECT_TRUE(*caches[0]->freeze(1) == *caches[1]->freeze(1));
}

TEST(DeviceRows, RowsThatAreNotFiniteAreRefusedWhenTheyLand) {
  const Twin twin(true);
  Small small(twin);
  const std::vector<float> prompt = Small::rows(40, kKvHeads), queries = Small::rows(1, kHeads);
  std::vector<float> rows = Small::rows(1, kKvHeads), out(queries.size());
  const SeqId seq = *small.cache->add_sequence();
  const RowsView whole = RowsView::f32(prompt.data(), 40, kKvHeads, kDim);
  const RowsView view = Small::there(RowsView::f32(rows.data(), 1, kKvHeads, kDim));
  const RowsView query = Small::there(RowsView::f32(queries.data(), 1, kHeads, kDim));
  for (uint32_t layer = 0; layer < 2; ++layer) ASSERT_TRUE(small.cache->append(seq, layer, whole, whole).ok());
  for (const float bad : {NAN, INFINITY, 1e9f}) {
    ASSERT_TRUE(small.cache->attention(seq, 0, query, out.data()).ok());
    ASSERT_TRUE(small.cache->attention(seq, 1, query, out.data()).ok());
    ASSERT_TRUE(small.cache->append(seq, 0, view, view).ok());
    ASSERT_TRUE(twin.device->check().ok());
    const uint64_t taken = twin.device->counts().rows_taken;
    rows[5] = bad;
    ASSERT_TRUE(small.cache->append(seq, 1, view, view).ok());
    ASSERT_EQ(twin.device->counts().rows_taken, taken + 1);
    ASSERT_TRUE(twin.machine->wait().ok());
    rows[5] = 0.5f;
    const Status refused = small.cache->append(seq, 1, view, view);
    EXPECT_EQ(refused.code(), StatusCode::invalid_argument);
    EXPECT_NE(refused.message().find("layer 1 at position 40"), std::string::npos) << refused.message();
    EXPECT_EQ(small.cache->attention(seq, 0, query, out.data()).code(), StatusCode::invalid_argument);
    EXPECT_EQ(small.cache->fork(seq).status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(small.cache->freeze(seq).status().code(), StatusCode::invalid_argument);
    ASSERT_TRUE(small.cache->truncate(seq, 41).ok());
    EXPECT_EQ(small.cache->freeze(seq).status().code(), StatusCode::invalid_argument);
    ASSERT_TRUE(small.cache->truncate(seq, 40).ok());
    EXPECT_TRUE(small.cache->freeze(seq).ok());
    (void)twin.device->check();
  }
}

TEST(DeviceRows, ResultsGoWhereverTheItemsWantThem) {
  const Twin twin(true);
  Small small(twin);
  constexpr uint32_t kMany = 5;
  const std::vector<float> rows = Small::rows(40, kKvHeads), queries = Small::rows(kMany, kHeads);
  const size_t size = size_t{kHeads} * kDim;
  std::vector<float> together(kMany * size, NAN), apart(kMany * (size + 4), NAN), reversed(kMany * size, NAN);
  std::vector<AttentionItem> in_order, with_gaps, backwards;
  for (uint32_t i = 0; i < kMany; ++i) {
    const SeqId seq = *small.cache->add_sequence();
    const RowsView view = Small::there(RowsView::f32(rows.data(), 20 + 4 * i, kKvHeads, kDim));
    ASSERT_TRUE(small.cache->append(seq, 1, view, view).ok());
    const RowsView query = Small::there(RowsView::f32(queries.data() + i * size, 1, kHeads, kDim));
    in_order.push_back({seq, query, together.data() + i * size});
    with_gaps.push_back({seq, query, apart.data() + i * (size + 4)});
    backwards.push_back({seq, query, reversed.data() + (kMany - 1 - i) * size});
  }
  for (auto* items : {&in_order, &with_gaps, &backwards}) ASSERT_TRUE(small.cache->attention(1, *items).ok());
  ASSERT_TRUE(twin.device->check().ok());
  for (uint32_t i = 0; i < kMany; ++i) {
    for (size_t c = 0; c < size; ++c) {
      ASSERT_TRUE(std::isfinite(together[i * size + c]));
      ASSERT_EQ(together[i * size + c], apart[i * (size + 4) + c]);
      ASSERT_EQ(together[i * size + c], reversed[(kMany - 1 - i) * size + c]);
    }
    for (size_t c = size; c < size + 4; ++c) ASSERT_TRUE(std::isnan(apart[i * (size + 4) + c]));
  }
}

TEST(DeviceRows, WhatIsOnlyKnownLaterIsSaidOnce) {
  const Twin twin(true);
  Small small(twin);
  const std::vector<float> rows = Small::rows(40, kKvHeads);
  std::vector<float> queries = Small::rows(1, kHeads), out(queries.size(), NAN);
  const SeqId seq = *small.cache->add_sequence();
  const RowsView view = RowsView::f32(rows.data(), 40, kKvHeads, kDim);
  for (uint32_t layer = 0; layer < 2; ++layer) ASSERT_TRUE(small.cache->append(seq, layer, view, view).ok());
  const auto attend = [&] {
    return small.cache->attention(seq, 1, Small::there(RowsView::f32(queries.data(), 1, kHeads, kDim)), out.data());
  };
  queries[3] = NAN;
  EXPECT_TRUE(attend().ok());
  const Status late = twin.device->check();
  EXPECT_EQ(late.code(), StatusCode::out_of_range);
  EXPECT_NE(late.message().find("layer 1"), std::string::npos) << late.message();
  EXPECT_TRUE(twin.device->check().ok());
  EXPECT_EQ(out[0], 0.0f);  // of the head that it was in
  EXPECT_TRUE(attend().ok());
  ASSERT_TRUE(twin.machine->wait().ok());
  queries[3] = 0.5f;
  EXPECT_EQ(attend().code(), StatusCode::out_of_range);  // of the call before
  EXPECT_TRUE(attend().ok());
  EXPECT_TRUE(twin.device->check().ok());
  EXPECT_NE(out[0], 0.0f);
}

TEST(DeviceRows, ManySequencesAreAppendedInOneCall) {
  const Twin twin(true);
  Small small(twin);
  const std::vector<float> rows = Small::rows(2, kKvHeads);
  std::vector<float> bad = rows;
  bad[7] = INFINITY;
  const RowsView view = Small::there(RowsView::f32(rows.data(), 2, kKvHeads, kDim));
  const RowsView broken = Small::there(RowsView::f32(bad.data(), 2, kKvHeads, kDim));
  std::vector<AppendItem> items;
  for (int i = 0; i < 3; ++i) items.push_back({*small.cache->add_sequence(), view, view, {}});
  items.push_back({999, view, view, {}});
  items[1].values = broken;
  const uint64_t waits = twin.machine->waits;
  EXPECT_EQ(small.cache->append_many(0, items).code(), StatusCode::invalid_argument);
  EXPECT_EQ(twin.machine->waits, waits + 1);
  EXPECT_TRUE(items[0].status.ok() && items[2].status.ok());
  EXPECT_EQ(items[1].status.code(), StatusCode::invalid_argument) << items[1].status.message();
  EXPECT_EQ(items[3].status.code(), StatusCode::not_found);
  EXPECT_EQ(*small.cache->length(items[0].seq, 0), 2u);
  EXPECT_EQ(*small.cache->length(items[1].seq, 0), 0u);

  const auto refused = [&](uint32_t layer, StatusCode code) {
    EXPECT_EQ(small.cache->append_many(layer, items).code(), code);
    for (const AppendItem& item : items) EXPECT_EQ(item.status.code(), code);
    EXPECT_EQ(*small.cache->length(items[0].seq, 0), 2u);
  };
  refused(2, StatusCode::out_of_range);
  items[3].seq = items[0].seq;
  refused(0, StatusCode::invalid_argument);
  items.pop_back();
  items[1].values = view;
  items[2].keys.place = MemoryPlace::host;
  refused(0, StatusCode::invalid_argument);
  items[2].keys = view, items[2].values.ready = &items;  // another stream
  refused(0, StatusCode::invalid_argument);
  EXPECT_TRUE(small.cache->append_many(0, {}).ok());
  small.cache->attend_with(nullptr);
  items[2].values = view;
  refused(0, StatusCode::unsupported);
}

TEST(DeviceRows, AFailureLeavesTheCacheIntact) {
  for (const bool lazy : {false, true}) {
    const Twin twin(lazy, uint64_t{40} << 20);
    Small small(twin, "hot=16,warm=all,warm_codec=fp16,warm_block=128,archive_block=128,sinks=0");
    const std::vector<float> rows = Small::rows(128, kKvHeads), queries = Small::rows(1, kHeads);
    const RowsView view = Small::there(RowsView::f32(rows.data(), 128, kKvHeads, kDim));
    const RowsView query = RowsView::f32(queries.data(), 1, kHeads, kDim);
    std::vector<float> out(queries.size(), NAN), here(queries.size(), NAN);
    const SeqId seq = *small.cache->add_sequence();
    std::vector<float> varied = rows;
    for (int i = 0; i < 300; ++i) {  // 38 MiB of blocks: one slab of 32 is all that there is room for
      for (float& x : varied) x *= 1.001f;
      ASSERT_TRUE(
          small.cache
              ->append(seq, 0, RowsView::f32(varied.data(), 128, kKvHeads, kDim), RowsView::f32(varied.data(), 128, kKvHeads, kDim))
              .ok());
    }
    EXPECT_EQ(small.cache->attention(seq, 0, Small::there(query), out.data()).code(), StatusCode::resource_exhausted);
    EXPECT_LE(twin.device->usage().peak_bytes, uint64_t{40} << 20);
    EXPECT_GE(twin.device->usage().device_bytes, uint64_t{32} << 20);
    ASSERT_TRUE(small.cache->truncate(seq, 1000).ok());
    ASSERT_TRUE(small.cache->append(seq, 0, view, view).ok());
    twin.machine->sends_that_fail = 1;
    EXPECT_EQ(small.cache->attention(seq, 0, Small::there(query), out.data()).code(), StatusCode::io_error);
    for (uint64_t failing = 1; failing < 6; ++failing) {
      ASSERT_TRUE(small.cache->append(seq, 0, view, view).ok());
      twin.machine->sends_that_fail = failing;
      (void)small.cache->attention(seq, 0, Small::there(query), out.data());
      twin.machine->sends_that_fail = 0;
      ASSERT_TRUE(small.cache->attention(seq, 0, Small::there(query), out.data()).ok());
      ASSERT_TRUE(twin.device->check().ok());
      small.cache->attend_with(nullptr);
      ASSERT_TRUE(small.cache->attention(seq, 0, query, here.data()).ok());
      small.cache->attend_with(twin.device);
      for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], here[i], 2e-3) << i;
    }
  }
}

}  // namespace
}  // namespace tierkv
