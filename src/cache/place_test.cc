// Tokens that matter are kept better: what tokens receive until they are archived says which rows of a block `+topN` serves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cache/attend_testing.h"

namespace tierkv {
namespace {

using namespace tierkv::cache::testing;

constexpr const char* kSpec = "hot=16,warm=32,warm_codec=kivi8-g16,archive=kivi2-g16+top2,sinks=2,warm_block=16,archive_block=32";

// Token by token: a random token, then a query along the key of token `liked`, once it is there.
class Story {
 public:
  explicit Story(uint32_t liked)
      : liked_(liked), keys_(random_rows(kTokens, kKvHeads, 1)), values_(random_rows(kTokens, kKvHeads, 2)) {}

  void tell(AdaptiveKVCache& cache, SeqId seq, uint32_t from, uint32_t to, uint32_t step = 1) const {
    for (uint32_t t = from; t < to; t += step) {
      append(cache, seq, t, step);
      attend(cache, seq, t, step);
    }
  }

  void append(AdaptiveKVCache& cache, SeqId seq, uint32_t t, uint32_t count) const {
    const size_t at = static_cast<size_t>(t) * kKvHeads * kDim;
    ASSERT_TRUE(cache
                    .append(seq, 0, RowsView::f32(keys_.data() + at, count, kKvHeads, kDim),
                            RowsView::f32(values_.data() + at, count, kKvHeads, kDim))
                    .ok());
  }

  void attend(AdaptiveKVCache& cache, SeqId seq, uint32_t t, uint32_t count, bool observe = true) const {
    std::vector<float> queries(static_cast<size_t>(count) * kHeads * kDim), out(queries.size());
    for (uint32_t q = 0; q < count; ++q) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        const float* key = keys_.data() + (static_cast<size_t>(liked_) * kKvHeads + h / kGroup) * kDim;
        std::copy_n(key, kDim, queries.data() + (static_cast<size_t>(q) * kHeads + h) * kDim);
      }
    }
    AttentionOptions options;
    options.observe = observe;
    options.first_position = t;
    ASSERT_TRUE(cache.attention(seq, 0, query_view(queries), out.data(), options).ok());
  }

  // How far token t's key is from what it was.
  double error(const AdaptiveKVCache& cache, SeqId seq, uint32_t t) const {
    std::vector<float> key(kKvHeads * kDim), value(kKvHeads * kDim);
    EXPECT_TRUE(cache.get(seq, 0, std::vector<uint32_t>{t}, key.data(), value.data()).ok());
    double sum = 0.0;
    for (size_t i = 0; i < key.size(); ++i) sum += std::pow(key[i] - keys_[t * key.size() + i], 2.0);
    return std::sqrt(sum);
  }

  // Of tokens from..to-1, in the middle.
  double usual_error(const AdaptiveKVCache& cache, SeqId seq, uint32_t from, uint32_t to) const {
    std::vector<double> errors;
    for (uint32_t t = from; t < to; ++t) errors.push_back(error(cache, seq, t));
    std::sort(errors.begin(), errors.end());
    return errors[errors.size() / 2];
  }

  static constexpr uint32_t kTokens = 240;

 private:
  uint32_t liked_;
  std::vector<float> keys_, values_;
};

uint64_t archived(const AdaptiveKVCache& cache, SeqId seq) { return cache.memory_usage(seq).value()[Tier::archive].tokens; }

std::vector<std::byte> frozen(const AdaptiveKVCache& cache, SeqId seq) { return cache.freeze(seq).value(); }

TEST(Place, TheTokenThatQueriesLookAtIsKeptBetterWhicheverItIs) {
  for (const uint32_t liked : {40u, 77u, 101u}) {
    const Story story(liked);
    const auto cache = make_cache(kSpec);
    const SeqId seq = cache->add_sequence().value();
    story.tell(*cache, seq, 0, Story::kTokens);
    ASSERT_GT(archived(*cache, seq), 128u);
    EXPECT_LT(story.error(*cache, seq, liked), 0.4 * story.usual_error(*cache, seq, 34, 130)) << "token " << liked;
  }
}

TEST(Place, CallsThatDoNotObserveChangeNothingOfIt) {
  const Story story(77);
  std::vector<std::byte> bytes[2];
  for (const bool more : {false, true}) {
    const auto cache = make_cache(kSpec);
    const SeqId seq = cache->add_sequence().value();
    for (uint32_t t = 0; t < 200; ++t) {
      story.append(*cache, seq, t, 1);
      if (more) story.attend(*cache, seq, 0, 1, /*observe=*/false);
      story.attend(*cache, seq, t, 1);
    }
    bytes[more] = frozen(*cache, seq);
  }
  EXPECT_EQ(bytes[0], bytes[1]);
}

TEST(Place, DoesNotDependOnTheNumberOfThreads) {
  const Story story(60);
  std::vector<std::byte> bytes[2];
  for (const uint32_t threads : {1u, 3u}) {
    const auto cache = make_cache(kSpec, threads);
    const SeqId seq = cache->add_sequence().value();
    story.tell(*cache, seq, 0, Story::kTokens, 40);
    bytes[threads == 3] = frozen(*cache, seq);
  }
  EXPECT_EQ(bytes[0], bytes[1]);
}

TEST(Place, AThawedAndAForkedSequenceArchiveTheSameRows) {
  const Story story(90);
  const auto cache = make_cache(kSpec);
  const SeqId seq = cache->add_sequence().value();
  story.tell(*cache, seq, 0, 110);
  const auto thawed = cache->unfreeze(frozen(*cache, seq));
  const auto fork = cache->fork(seq);
  ASSERT_TRUE(thawed.ok() && fork.ok());
  for (const SeqId one : {seq, *thawed, *fork}) story.tell(*cache, one, 110, Story::kTokens);
  EXPECT_EQ(frozen(*cache, *thawed), frozen(*cache, seq));
  EXPECT_EQ(frozen(*cache, *fork), frozen(*cache, seq));
  EXPECT_LT(story.error(*cache, *thawed, 90), 0.4 * story.usual_error(*cache, *thawed, 34, 130))
      << "what it received before counts";
}

TEST(Place, ArchivedTokensHaveNoStatisticsOfTheirOwn) {
  const Story story(5);
  const auto plain = make_cache("hot=16,warm=32,warm_codec=kivi8-g16,archive=kivi2-g16,sinks=2,warm_block=16,archive_block=32");
  const auto placed = make_cache(kSpec);
  uint64_t books[2], tokens = 0;
  for (const auto& [cache, at] : {std::pair{plain.get(), 0}, std::pair{placed.get(), 1}}) {
    const SeqId seq = cache->add_sequence().value();
    story.tell(*cache, seq, 0, Story::kTokens);
    books[at] = cache->memory_usage(seq).value().bookkeeping_bytes;
    tokens = archived(*cache, seq);
  }
  const uint64_t recent = Story::kTokens - tokens;
  EXPECT_GE(books[1], books[0] + recent * kKvHeads * sizeof(float)) << "recent ones have";
  EXPECT_LT(books[1], books[0] + 4 * recent * kKvHeads * sizeof(float));
}

TEST(Place, ALongPieceOfAPromptWaitsForItsQueries) {
  const Story story(30);
  const auto cache = make_cache(kSpec);
  const SeqId seq = cache->add_sequence().value();
  story.append(*cache, seq, 0, 200);
  EXPECT_EQ(archived(*cache, seq), 0u) << "nobody has looked at any of them";
  story.attend(*cache, seq, 0, 200);
  story.append(*cache, seq, 200, 1);
  story.attend(*cache, seq, 200, 1);
  for (uint32_t t = 201; t < 206; ++t) story.append(*cache, seq, t, 1);
  EXPECT_GE(archived(*cache, seq), 96u);
  EXPECT_LT(story.error(*cache, seq, 30), 0.4 * story.usual_error(*cache, seq, 10, 90));
}

}  // namespace
}  // namespace tierkv
