// Rows of many sequences in one call: the same bits as one by one, and one that is refused disturbs nobody.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "attn/cpu_backend.h"
#include "base/folder_testing.h"
#include "cache/impl.h"

namespace tierkv {
namespace {

constexpr uint32_t kLayers = 2, kHeads = 4, kKvHeads = 2, kDim = 64;
constexpr const char* kTiers = "hot=16,warm=32,sinks=4,warm_block=16,archive_block=32,warm_codec=even4,archive=";

std::unique_ptr<AdaptiveKVCache> make(const std::string& spec) {
  CacheConfig config;
  config.num_layers = kLayers, config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
  EXPECT_TRUE(apply_spec(spec, config).ok()) << spec;
  return AdaptiveKVCache::create(config).value();
}

std::vector<float> noise(size_t count, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& x : out) x = normal(rng);
  return out;
}

// Two caches that get the same rows: the first sequence by sequence, the second all in one call.
class Both {
 public:
  Both(const std::string& alone, const std::string& together, uint32_t seed) : caches{make(alone), make(together)}, rng_(seed) {}

  void add() {
    const SeqId id = *caches[0]->add_sequence();
    EXPECT_EQ(*caches[1]->add_sequence(), id);
    ids.push_back(id);
  }
  void fork(SeqId of) {
    const SeqId id = *caches[0]->fork(of);
    EXPECT_EQ(*caches[1]->fork(of), id);
    ids.push_back(id);
  }
  // counts[i] tokens of ids[i], in any order.
  void append(const std::vector<uint32_t>& counts) {
    std::vector<size_t> order(ids.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), rng_);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      std::vector<std::vector<float>> rows;
      std::vector<AppendItem> items;
      for (const size_t i : order) {
        const auto view = [&] {
          rows.push_back(noise(size_t{counts[i]} * kKvHeads * kDim, rng_));
          return RowsView::f32(rows.back().data(), counts[i], kKvHeads, kDim);
        };
        const RowsView keys = view(), values = view();
        items.push_back({ids[i], keys, values, {}});
      }
      for (const AppendItem& item : items) ASSERT_TRUE(caches[0]->append(item.seq, layer, item.keys, item.values).ok());
      const Status status = caches[1]->append_many(layer, items);
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
  // So that rows differ in what they received.
  void attend() {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (const SeqId id : ids) {
        const std::vector<float> queries = noise(size_t{kHeads} * kDim, rng_);
        std::vector<float> out[2];
        for (int c = 0; c < 2; ++c) {
          out[c].resize(queries.size());
          ASSERT_TRUE(caches[c]->attention(id, layer, RowsView::f32(queries.data(), 1, kHeads, kDim), out[c].data()).ok());
        }
        ASSERT_EQ(out[0], out[1]);
      }
    }
  }
  void compare() {
    for (const SeqId id : ids) {
      const auto a = caches[0]->freeze(id), b = caches[1]->freeze(id);
      ASSERT_TRUE(a.ok() && b.ok());
      ASSERT_TRUE(*a == *b) << "sequence " << id << " of " << *caches[0]->length(id) << " tokens";
    }
  }
  uint32_t any(uint32_t below) { return static_cast<uint32_t>(rng_() % below); }

  std::unique_ptr<AdaptiveKVCache> caches[2];
  std::vector<SeqId> ids;

 private:
  std::mt19937 rng_;
};

// Ragged lengths, forks that share tails, truncations; steps of one token, and pieces of prompts now and then.
void grow(Both& both, uint32_t steps) {
  for (int i = 0; i < 5; ++i) both.add();
  std::vector<uint32_t> counts = {0, 1, 19, 70, 200};
  both.append(counts);
  for (uint32_t step = 0; step < steps; ++step) {
    if (step % 9 == 4 && both.ids.size() < 9) both.fork(both.ids[both.any(static_cast<uint32_t>(both.ids.size()))]);
    if (step % 7 == 6) {
      const SeqId id = both.ids[both.any(5)];
      const uint32_t length = *both.caches[0]->length(id), fewer = std::min(length, both.any(8));
      for (auto& cache : both.caches) ASSERT_TRUE(cache->truncate(id, length - fewer).ok());
    }
    counts.assign(both.ids.size(), 1);
    if (step % 5 == 3) {
      for (uint32_t& count : counts) count = both.any(4) == 0 ? both.any(90) : both.any(3);
    }
    both.append(counts);
    if (::testing::Test::HasFatalFailure()) return;
    if (step % 3 == 0) both.attend();
    if (step % 6 == 0) both.compare();
    if (::testing::Test::HasFatalFailure()) return;
  }
  both.compare();
}

TEST(AppendMany, GivesTheBitsOfOneByOne) {
  uint32_t seed = 1;
  for (const std::string& spec :
       {kTiers + std::string("kivi2-g16"), kTiers + std::string("rot2+top3"), kTiers + std::string("mid2,hot_type=bf16"),
        std::string("hot=16,warm=0,sinks=0,warm_block=16,archive_block=16,archive=rot3"), std::string("balanced,hot=32,warm=64"),
        std::string("hot=64,warm=32,archive=kivi4,window=48,window_slack=8,warm_block=16,archive_block=16"),
        std::string("hot=16,warm=32,archive=rot2,window=96,window_slack=8,warm_block=16,archive_block=32"), std::string("fp16"),
        kTiers + std::string("kivi2,evict=h2o,max_seq_len=120"), kTiers + std::string("kivi2,skip=top:2"),
        kTiers + std::string("kivi4,byte_budget=64MiB")}) {
    SCOPED_TRACE(spec);
    Both both(spec + ",threads=1", spec + ",threads=3", ++seed);
    grow(both, 60);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(AppendMany, CopiesInTheColdFileAreTheSame) {
  const TestFolder folder;
  const std::string spec = kTiers + std::string("rot2,cold_codec=int8,cold=");
  Both both(spec + folder.file("a"), spec + folder.file("b"), 77);
  grow(both, 40);
  if (::testing::Test::HasFatalFailure()) return;
  uint64_t tokens = 0;
  for (const SeqId id : both.ids) {
    PromotionReport reports[2];
    for (int c = 0; c < 2; ++c) ASSERT_TRUE(both.caches[c]->promote(id, 0, kAll, &reports[c]).ok());
    EXPECT_EQ(reports[0].tokens, reports[1].tokens);
    EXPECT_EQ(reports[0].without_copy, reports[1].without_copy);
    tokens += reports[1].tokens;
  }
  EXPECT_GT(tokens, 0u);
  both.compare();
}

// How often blocks are coded, and how many at a time.
class CountingBackend final : public attn::Backend {
 public:
  Status accepts(const RowsView& rows, const char* what) const override { return attn::cpu_backend().accepts(rows, what); }
  void encode(std::span<attn::EncodeWork> blocks, const Executor& run) const override {
    ++calls, sides += blocks.size();
    attn::cpu_backend().encode(blocks, run);
  }
  void decode(std::span<const attn::DecodeWork> blocks, const Executor& run) const override {
    attn::cpu_backend().decode(blocks, run);
  }
  void attend(std::span<attn::AttendWork> works, const Executor& run) const override { attn::cpu_backend().attend(works, run); }
  mutable uint64_t calls = 0, sides = 0;
};

TEST(AppendMany, CodesTheBlocksOfAllSequencesInOneCall) {
  constexpr uint32_t kMany = 8;
  const auto backend = std::make_shared<CountingBackend>();
  const auto cache = make(kTiers + std::string("kivi2"));
  cache->attend_with(backend);
  std::mt19937 rng(3);
  const std::vector<float> rows = noise(size_t{100} * kKvHeads * kDim, rng);
  std::vector<SeqId> ids;
  const auto append = [&](uint32_t tokens) {
    std::vector<AppendItem> items;
    const RowsView view = RowsView::f32(rows.data(), tokens, kKvHeads, kDim);
    for (const SeqId id : ids) items.push_back({id, view, view, {}});
    ASSERT_TRUE(cache->append_many(0, items).ok());
  };
  for (uint32_t i = 0; i < kMany; ++i) ids.push_back(*cache->add_sequence());
  append(35);
  EXPECT_EQ(backend->calls, 0u);
  append(1);  // sinks and a warm block of each head
  EXPECT_EQ(backend->calls, 2u);
  EXPECT_EQ(backend->sides, 2u * 2 * kMany * kKvHeads);
  append(100);  // in steps, and all of them together: six warm blocks and two archive ones of each head
  EXPECT_EQ(backend->calls, 2u + 6 + 2);
  EXPECT_EQ(backend->sides, (2u + 6 + 2) * 2 * kMany * kKvHeads);
}

TEST(AppendMany, OneThatIsRefusedDisturbsNobody) {
  const auto cache = make(kTiers + std::string("kivi2,max_seq_len=60"));
  std::mt19937 rng(5);
  const std::vector<float> rows = noise(size_t{50} * kKvHeads * kDim, rng);
  std::vector<float> bad = rows;
  bad[11] = NAN;
  const RowsView view = RowsView::f32(rows.data(), 50, kKvHeads, kDim), broken = RowsView::f32(bad.data(), 50, kKvHeads, kDim);
  std::vector<AppendItem> items;
  for (int i = 0; i < 5; ++i) items.push_back({*cache->add_sequence(), view, view, {}});
  const SeqId parked = items[4].seq;
  ASSERT_TRUE(cache->append(items[0].seq, 0, RowsView::f32(rows.data(), 20, kKvHeads, kDim), view).code() ==
              StatusCode::invalid_argument);
  ASSERT_TRUE(
      cache->append(items[0].seq, 0, RowsView::f32(rows.data(), 20, kKvHeads, kDim), RowsView::f32(rows.data(), 20, kKvHeads, kDim))
          .ok());
  items[1].seq = 12345, items[2].values = broken;
  items[3].keys.tokens = 49;
  EXPECT_EQ(cache->append_many(0, items).code(), StatusCode::resource_exhausted);
  EXPECT_EQ(items[0].status.code(), StatusCode::resource_exhausted) << items[0].status.message();
  EXPECT_EQ(items[1].status.code(), StatusCode::not_found);
  EXPECT_EQ(items[2].status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(items[3].status.code(), StatusCode::invalid_argument);
  EXPECT_TRUE(items[4].status.ok());
  EXPECT_EQ(*cache->length(items[0].seq, 0), 20u);
  EXPECT_EQ(*cache->length(items[2].seq, 0), 0u);
  EXPECT_EQ(*cache->length(parked, 0), 50u);
}

struct Squeezed {
  uint64_t tokens = 0;  // that are in at the end
  uint32_t refused = 0;
  bool asked = false;  // the handler was
};

// Six sequences under a budget that not all of them fit into, each in whole or not at all.
Squeezed squeeze(const std::string& extra, bool handled, bool together) {
  const TestFolder folder;
  constexpr uint64_t kBudget = 640u << 10;
  const auto cache = make(kTiers + std::string("kivi2,threads=2,byte_budget=640KiB") +
                          (extra == "spill" ? ",spill=exact,cold=" + folder.file("cold") : extra));
  std::mt19937 rng(6);
  std::vector<SeqId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(*cache->add_sequence());
  const SeqId spare = *cache->add_sequence();
  const std::vector<float> rows = noise(size_t{400} * kKvHeads * kDim, rng);
  const auto view = [&](uint32_t tokens) { return RowsView::f32(rows.data(), tokens, kKvHeads, kDim); };
  for (uint32_t layer = 0; layer < kLayers; ++layer) EXPECT_TRUE(cache->append(spare, layer, view(400), view(400)).ok());
  Squeezed out;
  if (handled) {
    const auto remove_spare = [&](const MemoryPressure&) { return !std::exchange(out.asked, true) && cache->remove(spare).ok(); };
    EXPECT_TRUE(cache->set_pressure_handler(remove_spare).ok());
  }
  std::vector<uint32_t> lengths(ids.size() * kLayers);
  for (uint32_t step = 0; step < 400; ++step) {
    const uint32_t tokens = step % 10 == 9 ? 40 : 1;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      std::vector<AppendItem> items;
      for (const SeqId id : ids) items.push_back({id, view(tokens), view(tokens), {}});
      if (together) (void)cache->append_many(layer, items);
      for (size_t i = 0; i < ids.size(); ++i) {
        if (!together) items[i].status = cache->append(ids[i], layer, items[i].keys, items[i].values);
        uint32_t& length = lengths[i * kLayers + layer];
        if (items[i].status.ok()) length += tokens;
        else EXPECT_EQ(items[i].status.code(), StatusCode::resource_exhausted) << items[i].status.message();
        out.refused += !items[i].status.ok();
        EXPECT_EQ(*cache->length(ids[i], layer), length);
      }
    }
    EXPECT_LE(cache->memory_usage().total_bytes, kBudget);
    if (::testing::Test::HasFailure()) return out;
  }
  for (const SeqId id : ids) EXPECT_TRUE(cache->verify(id).ok());
  for (const uint32_t length : lengths) out.tokens += length;
  return out;
}

TEST(AppendMany, ShortOfMemoryItGoesOnOneByOne) {
  for (const std::string extra : {"", ",evict=h2o", "spill"}) {
    for (const bool handled : {false, true}) {
      SCOPED_TRACE(extra + (handled ? " with a handler" : ""));
      const Squeezed alone = squeeze(extra, handled, false), together = squeeze(extra, handled, true);
      EXPECT_EQ(together.asked, alone.asked);
      EXPECT_EQ(together.refused != 0, alone.refused != 0);
      EXPECT_GE(together.tokens, alone.tokens * 97 / 100);  // holes in the arena lie elsewhere
      if (extra.empty()) {
        EXPECT_GT(alone.refused, 0u) << "memory was short";
      }
    }
  }
}

}  // namespace
}  // namespace tierkv
