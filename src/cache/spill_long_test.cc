// Spilling at length: 32K tokens of SmolLM2's shape in a quarter of what `balanced` takes (100 MiB), 512 at a time. What memory
// keeps of spilled blocks lies among blocks that come and go, and must leave room for tails of 32 KiB.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/folder_testing.h"
#include "tierkv/cache.h"

#ifdef TIERKV_SOURCE_DIR
namespace tierkv::cache {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint32_t kTokens = 4096;  // a part of it, since it takes minutes there
#else
constexpr uint32_t kTokens = 32768;
#endif
constexpr uint32_t kLayers = 30, kHeads = 3, kQueryHeads = 9, kDim = 64, kCompared = 17;
constexpr size_t kWidth = size_t{kHeads} * kDim;

std::vector<float> random_rows(size_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& x : out) x = normal(rng);
  return out;
}

struct Filled {
  std::unique_ptr<AdaptiveKVCache> cache;
  SeqId seq = 0;
};

Filled make(const std::string& more) {
  CacheConfig config;
  config.num_layers = kLayers, config.num_heads = kQueryHeads, config.num_kv_heads = kHeads, config.head_dim = kDim;
  const std::string tables = std::string(TIERKV_SOURCE_DIR) + "/data/calibration/smollm2-135m.tkc";
  const Status applied = apply_inline("balanced,calibration=" + tables + more, config);
  EXPECT_TRUE(applied.ok()) << applied.to_string();
  auto made = AdaptiveKVCache::create(config);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  Filled out{std::move(made).value(), 0};
  out.seq = out.cache->add_sequence().value();
  return out;
}

// The rows of a few thousand tokens over and over, at other places of a block each time.
Status append(Filled& f, uint32_t layer, uint32_t token, uint32_t count) {
  static const std::vector<float> rows = random_rows(5000 * kWidth, 1);
  const RowsView view = RowsView::f32(rows.data() + token % (5000 - count) * kWidth, count, kHeads, kDim);
  return f.cache->append(f.seq, layer, view, view);
}

class SpillLong : public ::testing::TestWithParam<uint32_t> {};

TEST_P(SpillLong, AQuarterHoldsAllTokensAndAnswersTheSame) {
  const TestFolder folder;
  const uint32_t step = GetParam();
  Filled few = make(",cold=" + folder.path() + ",spill=exact,budget=24MiB"), all = make("");
  for (uint32_t t = 0; t < kTokens; t += step) {
    for (uint32_t l = 0; l < kLayers; ++l) {
      const Status status = append(few, l, t, step);
      ASSERT_TRUE(status.ok()) << "token " << t << ": " << status.to_string();
    }
    ASSERT_TRUE(append(all, kCompared, t, step).ok());
  }
  const MemoryStats m = few.cache->memory_usage();
  EXPECT_LE(m.peak_bytes, m.budget_bytes);
  EXPECT_LT(m[Tier::hot].bytes(), 4u << 20) << "tails settle instead of growing";
  EXPECT_LT(m.free_bytes, 4u << 20) << "what is free can be used";
  const auto q = random_rows(size_t{kQueryHeads} * kDim, 2);
  std::vector<float> a(q.size()), b(q.size());
  const RowsView query = RowsView::f32(q.data(), 1, kQueryHeads, kDim);
  ASSERT_TRUE(few.cache->attention(few.seq, kCompared, query, a.data()).ok());
  ASSERT_TRUE(all.cache->attention(all.seq, kCompared, query, b.data()).ok());
  double error = 0.0, energy = 0.0;
  for (size_t i = 0; i < a.size(); ++i) error += std::pow(a[i] - b[i], 2), energy += std::pow(b[i], 2);
  EXPECT_LT(std::sqrt(error / energy), 2e-3);
}

INSTANTIATE_TEST_SUITE_P(TokensAtATime, SpillLong, ::testing::Values(512u));

}  // namespace
}  // namespace tierkv::cache
#endif
