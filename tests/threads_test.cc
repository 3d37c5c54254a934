// threads_test.cc — one cache, several threads, each with sequences of its own, doing everything at once. TSan runs this.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "inspect.h"
#include "reference_cache.h"
#include "tierkv/cache.h"

namespace tierkv::testing {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSteps = 150;
#else
constexpr int kSteps = 600;
#endif
constexpr uint32_t kThreads = 4, kHeads = 2, kGroup = 2, kDim = 32, kLayers = 2;

std::unique_ptr<AdaptiveKVCache> make_cache(const std::string& settings) {
  CacheConfig c;
  c.num_layers = kLayers;
  c.num_kv_heads = kHeads;
  c.num_heads = kHeads * kGroup;
  c.head_dim = kDim;
  EXPECT_TRUE(
      apply_inline("warm_block=16,archive_block=32,hot=16,warm=32,warm_codec=rot4,archive=rot2,sinks=2," + settings, c).ok());
  auto made = AdaptiveKVCache::create(c);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return std::move(made).value();
}

// What one thread does to sequences nobody else touches; `parent` is read (forked, attended) by all of them.
class Worker {
 public:
  Worker(AdaptiveKVCache& cache, SeqId parent, unsigned seed, bool may_run_out)
      : cache_(cache), parent_(parent), rng_(seed), may_run_out_(may_run_out) {}

  void run() {
    for (int step = 0; step < kSteps && !::testing::Test::HasFailure(); ++step) {
      if (own_.empty() || (own_.size() < 4 && rng_() % 10 == 0)) {
        auto seq = rng_() % 2 ? cache_.add_sequence() : cache_.fork(parent_);
        if (accept(seq.status()) && seq.ok()) own_.push_back(*seq);
        continue;
      }
      one_step(own_[rng_() % own_.size()]);
    }
    for (const SeqId seq : own_) EXPECT_TRUE(cache_.remove(seq).ok());
  }

 private:
  bool accept(const Status& status) {
    const bool fine = status.ok() || (may_run_out_ && status.code() == StatusCode::resource_exhausted);
    EXPECT_TRUE(fine) << status.to_string();
    return fine;
  }

  void one_step(SeqId seq) {
    const uint32_t layer = rng_() % kLayers;
    switch (rng_() % 14) {
      default: append(seq, layer, 1 + rng_() % 40); break;
      case 0:
      case 1:
      case 2:
      case 3: attend(seq, layer); break;
      case 4: attend(parent_, layer); break;
      case 5: {
        const uint32_t length = cache_.length(seq).value();
        const Status status = cache_.truncate(seq, length ? rng_() % length : 0);
        EXPECT_TRUE(status.ok() || status.code() == StatusCode::failed_precondition ||
                    status.code() == StatusCode::resource_exhausted);
        break;
      }
      case 6: {
        const MemoryStats m = cache_.memory_usage();
        EXPECT_GE(m.total_bytes, m.free_bytes);
        EXPECT_TRUE(m.budget_bytes == 0 || m.peak_bytes <= m.budget_bytes);
        (void)cache_.memory_usage(seq);
        break;
      }
      case 7: {
        EXPECT_TRUE(cache_.remove(seq).ok());
        std::erase(own_, seq);
        break;
      }
      case 8: EXPECT_TRUE(cache_.adapt_thresholds({rng_() % 2 ? 0.3 : 1.0}).ok()); break;
      case 9: {
        const auto frozen = cache_.freeze(seq);
        ASSERT_TRUE(frozen.ok());
        auto thawed = cache_.unfreeze(*frozen);
        if (!accept(thawed.status()) || !thawed.ok()) break;
        EXPECT_TRUE(cache_.remove(*thawed).ok());
        break;
      }
      case 10: {
        EXPECT_TRUE(cache_.verify(seq).ok());
        EXPECT_FALSE(cache_.sequences().empty());
        (void)cache_.quality_metrics();
        (void)cache_.thresholds();
        if (rng_() % 4 == 0) accept(cache_.flush());
        break;
      }
    }
  }

  void append(SeqId seq, uint32_t layer, uint32_t tokens) {
    std::uniform_real_distribution<float> real(-1.0f, 1.0f);
    std::vector<float> rows(static_cast<size_t>(tokens) * kHeads * kDim);
    for (float& x : rows) x = real(rng_);
    const auto view = RowsView::f32(rows.data(), tokens, kHeads, kDim);
    const uint32_t before = cache_.length(seq, layer).value();
    const Status status = cache_.append(seq, layer, view, view);
    accept(status);
    EXPECT_EQ(cache_.length(seq, layer).value(), before + (status.ok() ? tokens : 0)) << "nobody else touches this sequence";
  }

  void attend(SeqId seq, uint32_t layer) {
    std::uniform_real_distribution<float> real(-2.0f, 2.0f);
    const uint32_t n = 1 + rng_() % 5;
    std::vector<float> queries(static_cast<size_t>(n) * kHeads * kGroup * kDim), out(queries.size(), NAN);
    for (float& x : queries) x = real(rng_);
    AttentionOptions options;
    options.first_position = 20;
    MassReport mass;
    if (rng_() % 3 == 0) options.mass = &mass;
    const Status status =
        cache_.attention(seq, layer, RowsView::f32(queries.data(), n, kHeads * kGroup, kDim), out.data(), options);
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (const float x : out) ASSERT_TRUE(std::fabs(x) <= 1.8f) << x;  // a mean of values within [-1, 1], and the codec's error
  }

  AdaptiveKVCache& cache_;
  const SeqId parent_;
  std::mt19937 rng_;
  const bool may_run_out_;
  std::vector<SeqId> own_;
};

void run_threads(const std::string& settings, bool may_run_out) {
  auto cache = make_cache(settings);
  const SeqId parent = cache->add_sequence().value();
  std::vector<float> rows(static_cast<size_t>(100) * kHeads * kDim, 0.25f);
  for (uint32_t l = 0; l < kLayers; ++l) {
    const auto view = RowsView::f32(rows.data(), 100, kHeads, kDim);
    ASSERT_TRUE(cache->append(parent, l, view, view).ok());
  }
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&cache, parent, t, may_run_out] { Worker(*cache, parent, 100 + t, may_run_out).run(); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache->sequences(), std::vector<SeqId>{parent});
  EXPECT_EQ(books_problem(*cache), "");
  EXPECT_EQ(cache->length(parent).value(), 100u);
  EXPECT_TRUE(cache->verify(parent).ok());
}

TEST(Threads, EverythingAtOnce) { run_threads("threads=1", false); }
TEST(Threads, EverythingAtOnceWithAPool) { run_threads("threads=3", false); }
TEST(Threads, EverythingAtOnceWithAWindow) { run_threads("window=40,window_slack=4", false); }
TEST(Threads, EverythingAtOnceWithEviction) { run_threads("evict=h2o,max_len=90,threads=2", false); }
TEST(Threads, EverythingAtOnceUnderABudget) { run_threads("budget=600KiB", true); }
TEST(Threads, EverythingAtOnceUnderABudgetWithEviction) { run_threads("budget=600KiB,evict=snapkv", true); }

TEST(Threads, CallsOnOneSequenceAreSerialised) {
  auto cache = make_cache("threads=2");
  const SeqId seq = cache->add_sequence().value();
  std::vector<std::thread> threads;
  std::atomic<uint32_t> appended{0};
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      // A thread's rows are all t: whatever the order, rows never mix within a token.
      const std::vector<float> rows(static_cast<size_t>(3) * kHeads * kDim, static_cast<float>(t));
      const auto view = RowsView::f32(rows.data(), 3, kHeads, kDim);
      for (int i = 0; i < kSteps / 6; ++i) {
        ASSERT_TRUE(cache->append(seq, 0, view, view).ok());
        appended += 3;
        std::vector<float> out(kHeads * kGroup * kDim);
        const std::vector<float> q(out.size(), 0.1f);
        ASSERT_TRUE(cache->attention(seq, 0, RowsView::f32(q.data(), 1, kHeads * kGroup, kDim), out.data()).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache->length(seq, 0).value(), appended);
  EXPECT_TRUE(cache->verify(seq).ok());
}

// Batches of the same sequences in any order, beside attention over them, forks and single appends: nobody waits for ever, and
// every row is there once.
TEST(Threads, BatchesOfTheSameSequencesMeet) {
  for (const char* settings : {"threads=2", "threads=2,budget=600KiB", "threads=1,evict=h2o,max_len=90"}) {
    auto cache = make_cache(settings);
    std::vector<SeqId> ids;
    for (int i = 0; i < 5; ++i) ids.push_back(cache->add_sequence().value());
    std::vector<std::atomic<uint32_t>> appended(ids.size());
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 rng(t);
        const std::vector<float> rows(static_cast<size_t>(50) * kHeads * kDim, static_cast<float>(t)),
            queries(static_cast<size_t>(kHeads) * kGroup * kDim, 0.1f);
        std::vector<float> out(ids.size() * queries.size());
        for (int i = 0; i < kSteps / 6; ++i) {
          std::vector<size_t> order = {0, 1, 2, 3, 4};
          std::shuffle(order.begin(), order.end(), rng);
          order.resize(2 + rng() % 4);
          const uint32_t tokens = i % 10 == 0 ? 50 : 1;
          const auto view = RowsView::f32(rows.data(), tokens, kHeads, kDim);
          std::vector<AppendItem> items;
          std::vector<AttentionItem> asked;
          for (const size_t at : order) {
            items.push_back({ids[at], view, view, {}});
            asked.push_back({ids[at], RowsView::f32(queries.data(), 1, kHeads * kGroup, kDim), out.data() + at * queries.size()});
          }
          (void)cache->append_many(0, items);
          for (size_t k = 0; k < items.size(); ++k) {
            if (items[k].status.ok()) appended[order[k]] += tokens;
            else ASSERT_EQ(items[k].status.code(), StatusCode::resource_exhausted) << items[k].status.message();
          }
          (void)cache->attention(0, asked);  // a sequence may be empty still
          if (i % 7 != 0) continue;
          if (cache->append(ids[order[0]], 0, view, view).ok()) appended[order[0]] += tokens;
          if (const auto fork = cache->fork(ids[order[1]]); fork.ok()) {
            ASSERT_TRUE(cache->remove(*fork).ok());
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(cache->length(ids[i], 0).value(), appended[i]) << settings;
      EXPECT_TRUE(cache->verify(ids[i]).ok());
    }
  }
}

TEST(Threads, RemovingASequenceUnderUseIsSafe) {
  auto cache = make_cache("threads=1");
  for (int round = 0; round < kSteps / 10; ++round) {
    const SeqId seq = cache->add_sequence().value();
    std::thread user([&] {
      const std::vector<float> rows(static_cast<size_t>(60) * kHeads * kDim, 0.5f);
      const auto view = RowsView::f32(rows.data(), 60, kHeads, kDim);
      for (int i = 0; i < 10; ++i) {
        const Status status = cache->append(seq, 0, view, view);
        ASSERT_TRUE(status.ok() || status.code() == StatusCode::not_found) << status.to_string();
      }
    });
    ASSERT_TRUE(cache->remove(seq).ok());
    user.join();
  }
  EXPECT_EQ(books_problem(*cache), "");
  ASSERT_TRUE(cache->flush().ok());
  EXPECT_EQ(cache->memory_usage().total_bytes, 0u);
}

}  // namespace
}  // namespace tierkv::testing
