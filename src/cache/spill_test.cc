// Spilling: archive blocks in the cold file alone. The same answers in less memory, all blocks read or only those that count, and
// what happens when the file fails.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>

#include "base/folder_testing.h"
#include "base/status_macros.h"
#include "cache/impl.h"
#include "cache/topics_testing.h"
#include "tierkv/cache.h"

namespace tierkv::cache {
namespace {

constexpr uint32_t kLayers = 2, kHeads = 2, kQueryHeads = 6, kDim = 64, kTokens = 8000;
constexpr size_t kWidth = size_t{kHeads} * kDim;
constexpr const char* kTiers = "hot=16,warm=64,warm_block=16,sinks=4";

const std::vector<float>& text() {
  static const std::vector<float> rows = tierkv::testing::rows_by_topic(kTokens, kWidth);
  return rows;
}

struct Reader {
  std::unique_ptr<AdaptiveKVCache> cache;
  SeqId seq = 0;
};

// The archive is rot2 unless `more` has another.
Result<std::unique_ptr<AdaptiveKVCache>> make(const std::string& more) {
  CacheConfig config;
  config.num_layers = kLayers, config.num_heads = kQueryHeads, config.num_kv_heads = kHeads, config.head_dim = kDim;
  const std::string archive = more.find("archive=") == std::string::npos ? ",archive=rot2" : "";
  TIERKV_RETURN_IF_ERROR(apply_inline(kTiers + archive + more, config));
  return AdaptiveKVCache::create(config);
}

Status read(Reader& r, uint32_t first, uint32_t count) {
  for (uint32_t t = first; t < first + count; t += 40) {
    const uint32_t n = std::min(40u, first + count - t);
    for (uint32_t l = 0; l < kLayers; ++l) {
      const RowsView rows = RowsView::f32(text().data() + t * kWidth, n, kHeads, kDim);
      TIERKV_RETURN_IF_ERROR(r.cache->append(r.seq, l, rows, rows));
    }
  }
  return {};
}

Reader reader(const std::string& more, uint32_t tokens = kTokens) {
  Reader out;
  auto made = make(more);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  out.cache = std::move(made).value();
  out.seq = out.cache->add_sequence().value();
  const Status status = read(out, 0, tokens);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return out;
}

std::vector<float> queries(uint32_t count, uint32_t seed, float size) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(size_t{count} * kQueryHeads * kDim);
  for (float& x : out) x = size * normal(rng);
  return out;
}

Status attend(Reader& r, uint32_t layer, const std::vector<float>& rows, std::vector<float>& out) {
  const auto count = static_cast<uint32_t>(rows.size() / (kQueryHeads * kDim));
  out.assign(rows.size(), -7.0f);
  return r.cache->attention(r.seq, layer, RowsView::f32(rows.data(), count, kQueryHeads, kDim), out.data());
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0.0, energy = 0.0;
  for (size_t i = 0; i < a.size(); ++i) error += std::pow(a[i] - b[i], 2), energy += std::pow(a[i], 2);
  return std::sqrt(error / energy);
}

uint64_t used(const AdaptiveKVCache& cache) { return cache.memory_usage().total_bytes - cache.memory_usage().free_bytes; }

class Spill : public ::testing::Test {
 protected:
  std::string file() const { return folder.file("cold"); }
  // Two fifths of what all of it takes in memory; tails are a large part of so little.
  std::string settings(const std::string& mode) const {
    static const uint64_t all = used(*reader("").cache);
    return ",cold=" + file() + ",spill=" + mode + ",budget=" + std::to_string(all * 2 / 5);
  }
  TestFolder folder;
};

TEST_F(Spill, AnswersTheSameInFewerBytes) {
  Reader all = reader(""), few = reader(settings("exact"));
  const MemoryStats m = few.cache->memory_usage();
  EXPECT_LE(m.peak_bytes, m.budget_bytes);
  EXPECT_GT(m.spilled_tokens, kTokens * kLayers * kHeads / 2);
  EXPECT_EQ(m.fp16_bytes, all.cache->memory_usage().fp16_bytes);
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (const uint32_t count : {1u, 3u, 60u}) {
      std::vector<float> a, b;
      const auto q = queries(count, 7 + l, 1.0f);
      ASSERT_TRUE(attend(all, l, q, a).ok());
      ASSERT_TRUE(attend(few, l, q, b).ok());
      EXPECT_LT(distance(a, b), 2e-3) << count;  // the kernels' own rounding, cut otherwise
    }
    std::vector<uint32_t> positions;
    for (uint32_t p = 0; p < kTokens; p += 61) positions.push_back(p);
    std::vector<float> a(positions.size() * kWidth), b(a.size());
    ASSERT_TRUE(all.cache->get(all.seq, l, positions, a.data(), nullptr).ok());
    ASSERT_TRUE(few.cache->get(few.seq, l, positions, b.data(), nullptr).ok());
    EXPECT_EQ(a, b) << "rows are the same bits";
  }
  EXPECT_TRUE(few.cache->verify(few.seq).ok());
  EXPECT_GT(few.cache->cold_usage().loaded, 0u);
  EXPECT_EQ(few.cache->cold_usage().left_out, 0u);
  EXPECT_EQ(few.cache->memory_usage().scratch_bytes, 0u);
}

TEST_F(Spill, LeavesOutNoMoreThanItsBound) {
  Reader all = reader(""), few = reader(settings("bounded:0.01"));
  const auto compare = [&](const std::vector<float>& q) {
    std::vector<float> a, b;
    ASSERT_TRUE(attend(all, 0, q, a).ok());
    ASSERT_TRUE(attend(few, 0, q, b).ok());
    EXPECT_LT(distance(a, b), 0.05);
  };
  for (const float size : {0.01f, 0.3f, 1.0f, 4.0f}) compare(queries(1, 3, size));
  EXPECT_LE(few.cache->cold_usage().left_out_mass, 0.01);
  std::vector<float> sharp;  // the newest key of each head, and nothing like it before
  for (uint32_t h = 0; h < kQueryHeads; ++h) {
    const float* key = text().data() + (kTokens - 1) * kWidth + h / (kQueryHeads / kHeads) * kDim;
    for (uint32_t c = 0; c < kDim; ++c) sharp.push_back(3.0f * key[c]);
  }
  const uint64_t left_out = few.cache->cold_usage().left_out;
  compare(sharp);
  const ColdStats stats = few.cache->cold_usage();
  EXPECT_GT(stats.left_out, left_out + 40);
  EXPECT_GT(stats.left_out_mass, 0.0);
  EXPECT_LE(stats.left_out_mass, 0.01);
}

TEST_F(Spill, ReadsTheHighestAloneAndAllOfAPrompt) {
  Reader few = reader(settings("top:5")), most = reader(",cold=" + folder.path() + ",spill=top:100000,budget=500KiB"),
         all = reader("");
  std::vector<float> a, b;
  const auto q = queries(1, 3, 1.0f);
  ASSERT_TRUE(attend(few, 0, q, a).ok());
  EXPECT_EQ(few.cache->cold_usage().loaded, 5u * kHeads);
  EXPECT_GT(few.cache->cold_usage().left_out, 0u);
  ASSERT_TRUE(attend(most, 0, q, a).ok());
  ASSERT_TRUE(attend(all, 0, q, b).ok());
  EXPECT_LT(distance(b, a), 2e-3);
  const uint64_t left_out = few.cache->cold_usage().left_out;
  const auto prompt = queries(30, 3, 1.0f);
  ASSERT_TRUE(attend(few, 0, prompt, a).ok());
  ASSERT_TRUE(attend(all, 0, prompt, b).ok());
  EXPECT_LT(distance(b, a), 2e-3);
  EXPECT_EQ(few.cache->cold_usage().left_out, left_out);
}

TEST_F(Spill, ForksTruncatesAndFreezesAsIfAllWereInMemory) {
  Reader all = reader(""), few = reader(settings("exact"));
  EXPECT_EQ(all.cache->freeze(all.seq).value(), few.cache->freeze(few.seq).value());
  const SeqId fork = few.cache->fork(few.seq).value();
  ASSERT_TRUE(few.cache->truncate(few.seq, 3000).ok());
  ASSERT_TRUE(all.cache->truncate(all.seq, 3000).ok());
  EXPECT_EQ(all.cache->freeze(all.seq).value(), few.cache->freeze(few.seq).value());
  Reader other{std::move(few.cache), fork};
  std::vector<float> a, b;
  const auto q = queries(2, 5, 1.0f);
  ASSERT_TRUE(other.cache->remove(few.seq).ok());
  ASSERT_TRUE(attend(other, 1, q, a).ok());
  Reader whole = reader("");
  ASSERT_TRUE(attend(whole, 1, q, b).ok());
  EXPECT_LT(distance(b, a), 2e-3);
  ASSERT_TRUE(other.cache->remove(fork).ok());
  ASSERT_TRUE(other.cache->flush().ok());
  EXPECT_EQ(other.cache->cold_usage().copies, 0u);
  EXPECT_EQ(used(*other.cache), 0u);
}

TEST_F(Spill, PromotesWhatIsSpilledAndDropsItAgain) {
  Reader few = reader(settings("exact"));
  std::vector<float> out;
  ASSERT_TRUE(attend(few, 0, queries(1, 1, 1.0f), out).ok());  // before: it leaves word of itself in the sequence
  const auto frozen = few.cache->freeze(few.seq).value();
  PromotionReport report;
  ASSERT_TRUE(few.cache->promote(few.seq, 200, 1, &report).ok());
  EXPECT_EQ(report.blocks, kLayers * kHeads);
  EXPECT_NE(few.cache->freeze(few.seq).value(), frozen);
  ASSERT_TRUE(attend(few, 0, queries(1, 1, 1.0f), out).ok());
  ASSERT_TRUE(few.cache->demote(few.seq).ok());
  EXPECT_EQ(few.cache->freeze(few.seq).value(), frozen);
}

// Which rows of a block are kept better is decided by what they received before they are archived, of everything that was read.
TEST_F(Spill, KeepsTheSameRowsBetterAsIfAllWereInMemory) {
  const std::string better = ",archive=rot2+top4";
  const auto told = [&](const std::string& more, bool observe) {
    Reader r = reader(more, 0);
    r.seq = r.cache->add_sequence().value();
    AttentionOptions options;
    options.observe = observe;
    for (uint32_t t = 0; t < kTokens; t += 40) {
      EXPECT_TRUE(read(r, t, 40).ok());
      const uint32_t count = t % 3 == 0 ? 40 : 2;  // prompts and decoding
      const auto q = queries(count, t, 1.0f);
      std::vector<float> out(q.size());
      for (uint32_t l = 0; l < kLayers; ++l) {
        const RowsView rows = RowsView::f32(q.data(), count, kQueryHeads, kDim);
        EXPECT_TRUE(r.cache->attention(r.seq, l, rows, out.data(), options).ok());
      }
    }
    return r;
  };
  Reader all = told(better, true), deaf = told(better, false), few = told(settings("exact") + better, true);
  EXPECT_GT(few.cache->memory_usage().spilled_tokens, kTokens * kLayers * kHeads / 2);
  std::vector<uint32_t> positions(kTokens);
  std::iota(positions.begin(), positions.end(), 0u);
  for (uint32_t l = 0; l < kLayers; ++l) {
    std::vector<float> rows[3];
    for (const auto& [r, at] : {std::pair{&all, 0}, {&few, 1}, {&deaf, 2}}) {
      rows[at].resize(kTokens * kWidth);
      ASSERT_TRUE(r->cache->get(r->seq, l, positions, rows[at].data(), nullptr).ok());
    }
    uint32_t other[3] = {};
    for (size_t i = 0; i < kTokens * kHeads; ++i) {
      for (const int at : {1, 2}) other[at] += !std::equal(&rows[0][i * kDim], &rows[0][i * kDim] + kDim, &rows[at][i * kDim]);
    }
    EXPECT_LT(other[1], kTokens * kHeads / 200) << "but for two of all but equal worth";
    EXPECT_GT(other[2], kTokens * kHeads / 50) << "the choice does depend on what is heard";
    std::vector<float> a, b;
    const auto q = queries(2, 77, 1.0f);
    ASSERT_TRUE(attend(all, l, q, a).ok());
    ASSERT_TRUE(attend(few, l, q, b).ok());
    EXPECT_LT(distance(a, b), 5e-3);
  }
}

// Nobody looks before all is read: under a budget few tokens wait in the warm tier for their queries.
TEST_F(Spill, BoundsCoverTheRowsThatAreKeptBetter) {
  const std::string better = ",archive=rot2+top4";
  const TestFolder another;
  std::string exact = settings("exact") + better;
  exact.replace(exact.find(file()), file().size(), another.path());
  Reader all = reader(exact), few = reader(settings("bounded:0.01") + better);
  for (const float size : {0.3f, 1.0f, 4.0f}) {
    std::vector<float> a, b;
    const auto q = queries(1, 3, size);
    ASSERT_TRUE(attend(all, 0, q, a).ok());
    ASSERT_TRUE(attend(few, 0, q, b).ok());
    EXPECT_LT(distance(a, b), 0.05);
  }
  EXPECT_LE(few.cache->cold_usage().left_out_mass, 0.01);
}

TEST_F(Spill, ADamagedBlockIsAnErrorOfItsSequenceAndNeverAnAnswer) {
  Reader few = reader(settings("exact") + ",cold_codec=fp16");
  Reader other{nullptr, few.cache->add_sequence().value()};
  const RowsView rows = RowsView::f32(text().data(), 50, kHeads, kDim);
  for (uint32_t l = 0; l < kLayers; ++l) ASSERT_TRUE(few.cache->append(other.seq, l, rows, rows).ok());
  ASSERT_TRUE(few.cache->flush().ok());
  const int fd = ::open(file().c_str(), O_RDWR);
  const uint64_t size = std::filesystem::file_size(file());
  for (uint64_t at = store::ColdFile::kHeaderBytes; at < size; at += 512)
    ASSERT_EQ(::pwrite(fd, "damage!", 7, static_cast<off_t>(at)), 7);
  ::close(fd);
  std::vector<float> out;
  EXPECT_EQ(attend(few, 0, queries(1, 1, 1.0f), out).code(), StatusCode::data_loss);
  EXPECT_EQ(few.cache->verify(few.seq).code(), StatusCode::data_loss);
  EXPECT_EQ(few.cache->freeze(few.seq).status().code(), StatusCode::data_loss);
  const uint32_t old = 300, fresh = kTokens - 1;
  std::vector<float> row(kWidth);
  EXPECT_EQ(few.cache->get(few.seq, 0, {&old, 1}, row.data(), nullptr).code(), StatusCode::data_loss);
  EXPECT_TRUE(few.cache->get(few.seq, 0, {&fresh, 1}, row.data(), nullptr).ok());
  EXPECT_TRUE(few.cache->verify(other.seq).ok());
  EXPECT_TRUE(few.cache->remove(few.seq).ok());
  few.seq = other.seq;
  EXPECT_TRUE(attend(few, 0, queries(1, 1, 1.0f), out).ok());
}

TEST_F(Spill, AFullFileRefusesTokensAndLosesNone) {
  Reader few{make(settings("exact") + ",cold_budget=200KiB").value(), 0};
  few.seq = few.cache->add_sequence().value();
  EXPECT_EQ(read(few, 0, kTokens).code(), StatusCode::resource_exhausted);
  const uint32_t length = few.cache->length(few.seq).value();
  EXPECT_GT(length, 500u);
  EXPECT_TRUE(few.cache->verify(few.seq).ok());
  std::vector<float> out;
  EXPECT_TRUE(attend(few, 0, queries(1, 1, 1.0f), out).ok());
}

TEST_F(Spill, SaysWhyTheFileDidNotGrow) {
  const auto says = [](const Status& status, const std::string& what) {
    EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
    EXPECT_NE(status.message().find("byte_budget"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find("eviction"), std::string::npos) << "does not go with spill: " << status.message();
  };
  Reader limited{make(settings("exact") + ",cold_budget=200KiB").value(), 0};
  limited.seq = limited.cache->add_sequence().value();
  says(read(limited, 0, kTokens), "cold_budget of 204800 bytes is reached");
  limited.cache.reset();

  Reader few{make(settings("exact")).value(), 0};  // the system refuses what lies behind its limit, as a full disk does
  few.seq = few.cache->add_sequence().value();
  const auto previous = ::signal(SIGXFSZ, SIG_IGN);
  rlimit old = {};
  ::getrlimit(RLIMIT_FSIZE, &old);
  rlimit small = old;
  small.rlim_cur = 200 << 10;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = read(few, 0, kTokens);
  ::setrlimit(RLIMIT_FSIZE, &old);
  ::signal(SIGXFSZ, previous);
  says(status, "cannot write the cold file '" + file() + "': File too large; the cold file could not grow: make room on its disk");
  EXPECT_TRUE(few.cache->verify(few.seq).ok());
  const uint32_t length = few.cache->length(few.seq).value();
  EXPECT_GT(length, 500u);
  EXPECT_TRUE(read(few, length / 40 * 40, 400).ok()) << "with room on the disk it goes on";
}

TEST_F(Spill, SaysWhatDoesNotGoTogether) {
  const std::string cold = ",cold=" + folder.path();
  EXPECT_FALSE(make(",spill=exact,budget=1MiB").ok()) << "no file";
  EXPECT_FALSE(make(cold + ",spill=exact").ok()) << "no budget";
  EXPECT_FALSE(make(cold + ",spill=exact,budget=1MiB,evict=h2o").ok());
  for (const char* wrong : {"some", "top", "top:0", "top:x", "bounded:0", "bounded:1", "bounded:-1", "bounded:0.1x", "exact:1"}) {
    const auto made = make(cold + ",budget=1MiB,spill=" + wrong);
    ASSERT_FALSE(made.ok()) << wrong;
    EXPECT_NE(made.status().message().find("bounded:EPS"), std::string::npos) << made.status().message();
  }
  EXPECT_TRUE(make(cold + ",spill=bounded:1e-3,budget=1MiB").ok());
  Reader few = reader(settings("exact"));
  MassReport mass;
  AttentionOptions options;
  options.mass = &mass;
  const auto q = queries(1, 1, 1.0f);
  std::vector<float> out(q.size());
  EXPECT_EQ(few.cache->attention(few.seq, 0, RowsView::f32(q.data(), 1, kQueryHeads, kDim), out.data(), options).code(),
            StatusCode::failed_precondition);
}

}  // namespace
}  // namespace tierkv::cache
