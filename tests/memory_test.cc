// ctest: slow
// memory_test.cc — the memory the cache reports is the memory it uses: against its arena, and against the process at 1 GiB of FP16.
//
// Encoding 1 GiB for `balanced` takes 20 seconds; it runs at a quarter of that unless TIERKV_LONG_TESTS is set.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "inspect.h"
#include "tierkv/cache.h"
#include "tierkv/calibration.h"

namespace tierkv::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

CacheConfig make_config(uint32_t layers, uint32_t kv_heads, uint32_t dim, const std::string& settings) {
  CacheConfig c;
  c.num_layers = layers;
  c.num_kv_heads = kv_heads;
  c.head_dim = dim;
  const Status status = apply_inline(settings, c);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return c;
}

std::unique_ptr<AdaptiveKVCache> make_cache(const CacheConfig& c) {
  auto made = AdaptiveKVCache::create(c);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return made.ok() ? std::move(made).value() : nullptr;
}

// Resident bytes of this process that are its own. Pages of the program and of mapped files are left out: the kernel brings in as
// many around the one that was touched as it likes, and takes them back when it wants.
uint64_t resident() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (!file) return 0;
  unsigned long long total = 0, pages = 0, of_files = 0;
  const int read = std::fscanf(file, "%llu %llu %llu", &total, &pages, &of_files);
  std::fclose(file);
  return read == 3 ? (pages - of_files) * 4096ull : 0;
}

// Rows as 16-bit floats, so that making and checking them costs little: sign, exponent around 1, random mantissa.
std::vector<uint16_t> half_rows(size_t n) {
  std::vector<uint16_t> out(n);
  uint32_t state = 99;
  for (uint16_t& x : out) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<uint16_t>((state >> 16 & 0x83FFu) | 0x3800u);
  }
  return out;
}

struct Gigabyte {
  const char* name;
  const char* settings;
  uint32_t layers, kv_heads, dim, chunk;
  bool long_test = false;
};

class AtOneGigabyte : public ::testing::TestWithParam<Gigabyte> {};

TEST_P(AtOneGigabyte, ReportedEqualsMappedAndResidentWithin5Percent) {
  if (kSanitized) GTEST_SKIP() << "shadow memory is resident too";
  const Gigabyte& g = GetParam();
  const uint64_t token_bytes = 2ull * g.layers * g.kv_heads * g.dim * 2;
  const uint64_t fp16_bytes = (uint64_t{1} << 30) / (g.long_test && !std::getenv("TIERKV_LONG_TESTS") ? 4 : 1);
  const auto tokens = static_cast<uint32_t>(fp16_bytes / token_bytes);
  auto cache = make_cache(make_config(g.layers, g.kv_heads, g.dim, g.settings));
  const SeqId seq = cache->add_sequence().value();
  const auto rows = half_rows(static_cast<size_t>(g.chunk) * g.kv_heads * g.dim);
  const auto view = RowsView::dense(rows.data(), DType::f16, g.chunk, g.kv_heads, g.dim);
  const uint64_t before = resident();
  ASSERT_GT(before, 0u);
  const uint64_t mapped_before = cache->memory_usage().total_bytes;
  for (uint32_t t = 0; t < tokens; t += g.chunk) {
    for (uint32_t l = 0; l < g.layers; ++l) ASSERT_TRUE(cache->append(seq, l, view, view).ok());
  }
  const MemoryStats m = cache->memory_usage();
  EXPECT_EQ(books_problem(*cache), "");
  EXPECT_EQ(m.fp16_bytes, fp16_bytes);
  const double grown = static_cast<double>(resident()) - static_cast<double>(before);
  const double reported = static_cast<double>(m.total_bytes - mapped_before);
  if (cache->config().tiers.hot == kAll) {
    // One buffer that grows by a quarter: what it has not filled yet is mapped, counted as overhead, and not resident before it is
    // used.
    EXPECT_LT(grown, 1.05 * reported);
    EXPECT_GT(grown, 0.95 * static_cast<double>(m.total_bytes - m[Tier::hot].overhead_bytes));
  } else {
    EXPECT_NEAR(grown / reported, 1.0, 0.05) << "reported " << reported << ", resident grew by " << grown;
  }
  std::printf("%s: %.1f MiB reported, %.1f MiB resident, FP16/%.2f, free %.2f %%\n", g.name, reported / 1048576, grown / 1048576,
              m.compression(), 100.0 * static_cast<double>(m.free_bytes) / static_cast<double>(m.total_bytes));
  EXPECT_LE(m.free_bytes, m.total_bytes / 10) << "little is held in vain";
  ASSERT_TRUE(cache->remove(seq).ok());
  ASSERT_TRUE(cache->flush().ok());
  EXPECT_EQ(cache->memory_usage().total_bytes, 0u);
  const double left = static_cast<double>(resident()) - static_cast<double>(before);
  EXPECT_LT(left, 0.05 * reported) << "and it goes back to the system";
}

INSTANTIATE_TEST_SUITE_P(Memory, AtOneGigabyte,
                         ::testing::Values(Gigabyte{"fp16", "fp16", 4, 4, 128, 512},
                                           Gigabyte{"hot_all", "hot=all", 2, 4, 128, 4096},
                                           Gigabyte{"int8", "int8", 2, 4, 128, 2048},
                                           Gigabyte{"balanced", "balanced", 1, 8, 128, 4096, true}),
                         [](const auto& info) { return info.param.name; });

// --- the default with a calibration

// Everything counted, tables included: at 8,192 tokens of the default model, whose heads are of 64, the contract is a sixth of
// FP16.
TEST(Calibrated, EightThousandTokensTakeASixthOfFp16) {
  if (std::getenv("TIERKV_TEST_BRIEF")) GTEST_SKIP() << "takes minutes on an emulator";
  const auto calibration = load_calibration(TIERKV_SOURCE_DIR "/data/calibration/smollm2-135m.tkc");
  ASSERT_TRUE(calibration.ok()) << calibration.status().to_string();
  const CalibrationInfo model = describe(**calibration);
  ASSERT_EQ(model.head_dim, 64u);
  CacheConfig config = make_config(model.num_layers, model.num_kv_heads, model.head_dim, "balanced");
  config.num_heads = model.num_heads;
  constexpr uint32_t kTokens = 8192, kChunk = 64;  // as the host feeds a prompt
  const auto rows = half_rows(size_t{kChunk} * model.num_kv_heads * model.head_dim);
  const auto view = RowsView::dense(rows.data(), DType::f16, kChunk, model.num_kv_heads, model.head_dim);
  const uint64_t before = resident();
  auto made = AdaptiveKVCache::create(config, *calibration);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  AdaptiveKVCache& cache = **made;
  const SeqId seq = cache.add_sequence().value();
  for (uint32_t t = 0; t < kTokens; t += kChunk) {
    for (uint32_t l = 0; l < model.num_layers; ++l) ASSERT_TRUE(cache.append(seq, l, view, view).ok());
  }
  const MemoryStats m = cache.memory_usage();
  EXPECT_EQ(m.fp16_bytes, 4ull * kTokens * model.num_layers * model.num_kv_heads * model.head_dim);
  EXPECT_GE(m.compression(), 6.0);
  EXPECT_LE(m[Tier::archive].bits_per_value(model.head_dim), 2.1);
  EXPECT_LE(m.table_bytes, uint64_t{1200} << 10);
  EXPECT_LE(m.free_bytes, m.total_bytes / 50);
  EXPECT_EQ(books_problem(cache), "");
  EXPECT_EQ(m.peak_bytes, m.total_bytes);
  const double grown = static_cast<double>(resident()) - static_cast<double>(before);
  if (!kSanitized) {
    EXPECT_LT(grown, 1.05 * static_cast<double>(m.resident_bytes())) << "what is reported is what the process has";
  }
  std::printf("%.2f MiB of %.0f, FP16/%.2f: tables %.2f, free %.2f, resident %.2f\n",
              static_cast<double>(m.resident_bytes()) / 1048576, static_cast<double>(m.fp16_bytes) / 1048576, m.compression(),
              static_cast<double>(m.table_bytes) / 1048576, static_cast<double>(m.free_bytes) / 1048576, grown / 1048576);
}

// --- budgets

std::vector<float> floats(size_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<float> real(-1.0f, 1.0f);
  std::vector<float> out(n);
  for (float& x : out) x = real(rng);
  return out;
}

TEST(Budget, IsNeverExceededAndARefusedAppendChangesNothing) {
  const uint64_t budget = 400 << 10;
  auto config = make_config(2, 2, 64, "balanced,warm=128,budget=400KiB");
  auto cache = make_cache(config);
  const SeqId seq = cache->add_sequence().value();
  std::mt19937 rng(3);
  uint32_t refused = 0, tokens = 0;
  for (uint32_t i = 0; refused < 20; ++i) {
    ASSERT_LT(i, 5000u) << "the budget never filled";
    const uint32_t n = 1 + rng() % 150, layer = rng() % 2;
    const auto rows = floats(static_cast<size_t>(n) * 2 * 64, i);
    const auto view = RowsView::f32(rows.data(), n, 2, 64);
    const uint64_t digest = digest_of(*cache);
    const Status status = cache->append(seq, layer, view, view);
    const MemoryStats m = cache->memory_usage();
    ASSERT_LE(m.total_bytes, budget);
    ASSERT_LE(m.peak_bytes, budget);
    ASSERT_EQ(books_problem(*cache), "");
    if (status.ok()) {
      tokens += n;
      continue;
    }
    ++refused;
    ASSERT_EQ(status.code(), StatusCode::resource_exhausted);
    EXPECT_NE(status.message().find("byte_budget"), std::string::npos) << status.message();
    ASSERT_EQ(digest_of(*cache), digest) << "after " << tokens << " tokens";
  }
  // What there is can still be used, and truncating makes room.
  const auto q = floats(2 * 64, 1);
  std::vector<float> out(q.size());
  EXPECT_TRUE(cache->attention(seq, 0, RowsView::f32(q.data(), 1, 2, 64), out.data()).ok());
  ASSERT_TRUE(cache->truncate(seq, 10).ok());
  const auto rows = floats(static_cast<size_t>(20) * 2 * 64, 1);
  EXPECT_TRUE(cache->append(seq, 0, RowsView::f32(rows.data(), 20, 2, 64), RowsView::f32(rows.data(), 20, 2, 64)).ok());
}

TEST(Budget, EvictionKeepsASequenceGrowingWithinIt) {
  for (const char* policy : {"h2o", "streaming_llm", "tova", "snapkv", "scissorhands", "pyramidkv_linear", "akv"}) {
    const uint64_t budget = 500 << 10;
    auto cache = make_cache(make_config(2, 2, 64, std::string("balanced,warm=128,budget=500KiB,evict=") + policy));
    const SeqId seq = cache->add_sequence().value();
    const auto q = floats(2 * 64, 1);
    std::vector<float> out(q.size());
    for (uint32_t t = 0; t < 6000; t += 20) {
      const auto rows = floats(static_cast<size_t>(20) * 2 * 64, t);
      const auto view = RowsView::f32(rows.data(), 20, 2, 64);
      for (uint32_t l = 0; l < 2; ++l) {
        const Status status = cache->append(seq, l, view, view);
        ASSERT_TRUE(status.ok()) << policy << " at " << t << ": " << status.to_string();
        ASSERT_TRUE(cache->attention(seq, l, RowsView::f32(q.data(), 1, 2, 64), out.data()).ok());
      }
      ASSERT_LE(cache->memory_usage().peak_bytes, budget) << policy;
    }
    EXPECT_EQ(books_problem(*cache), "") << policy;
    EXPECT_EQ(cache->length(seq).value(), 6000u);
    EXPECT_GT(cache->positions(seq, 0, 0).value().size(), 300u) << policy << ": the budget is used";
  }
}

TEST(Budget, TooSmallForOneBlockIsRefused) {
  for (const char* settings : {"balanced,budget=16KiB", "balanced,budget=1", "balanced,budget=20KiB,evict=h2o"}) {
    auto config = make_config(1, 1, 128, "balanced");
    const Status applied = apply_inline(settings, config);
    if (!applied.ok()) {  // the schema may already know
      EXPECT_NE(applied.message().find("byte_budget"), std::string::npos) << applied.message();
      continue;
    }
    const auto made = AdaptiveKVCache::create(config);
    ASSERT_FALSE(made.ok()) << settings;
    EXPECT_EQ(made.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(made.status().message().find("byte_budget"), std::string::npos) << made.status().message();
    EXPECT_NE(made.status().message().find("at least"), std::string::npos) << made.status().message();
  }
}

TEST(Usage, PayloadAndOverheadAreApartAndSharedBlocksCountOnce) {
  auto cache = make_cache(make_config(1, 2, 64, "balanced,hot=32,warm=64,warm_block=32,archive_block=64"));
  const SeqId seq = cache->add_sequence().value();
  const auto rows = floats(static_cast<size_t>(500) * 2 * 64, 1);
  ASSERT_TRUE(cache->append(seq, 0, RowsView::f32(rows.data(), 500, 2, 64), RowsView::f32(rows.data(), 500, 2, 64)).ok());
  const MemoryStats one = cache->memory_usage();
  EXPECT_EQ(one[Tier::sink].tokens, 2u * 4);
  EXPECT_EQ(one[Tier::sink].payload_bytes, 2u * 4 * 64 * 2 * 2);
  EXPECT_GT(one[Tier::warm].payload_bytes, one[Tier::warm].overhead_bytes);
  EXPECT_GT(one[Tier::archive].payload_bytes, one[Tier::archive].overhead_bytes);
  EXPECT_LT(one[Tier::archive].bits_per_value(64), 4.0);
  const SeqId copy = cache->fork(seq).value();
  const MemoryStats two = cache->memory_usage();
  for (int t = 0; t < kNumTiers; ++t) {
    EXPECT_EQ(two.tier[t].bytes(), one.tier[t].bytes()) << "shared: counted once";
    EXPECT_EQ(two.tier[t].tokens, 2 * one.tier[t].tokens);
  }
  // Lists aside: those of the copy have no room to grow yet.
  const MemoryStats of_copy = cache->memory_usage(copy).value(), of_seq = cache->memory_usage(seq).value();
  EXPECT_EQ(of_copy.total_bytes - of_copy.bookkeeping_bytes, of_seq.total_bytes - of_seq.bookkeeping_bytes)
      << "and in full in each sequence";
  EXPECT_EQ(books_problem(*cache), "");
}

}  // namespace
}  // namespace tierkv::testing
