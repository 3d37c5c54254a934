// Skipping: archive blocks in memory that a decoding step leaves unread. What it leaves out has no more attention than it says,
// nothing left out is to the bit what there was without it, and summaries follow blocks wherever those go.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/folder_testing.h"
#include "base/status_macros.h"
#include "cache/skip_blocks.h"
#include "cache/topics_testing.h"
#include "inspect.h"
#include "tierkv/cache.h"
#include "tiers/summary.h"

namespace tierkv::cache {
namespace {

constexpr uint32_t kLayers = 2, kHeads = 2, kQueryHeads = 6, kDim = 64, kTokens = 5000, kGroup = kQueryHeads / kHeads;
constexpr size_t kWidth = size_t{kHeads} * kDim;
constexpr const char* kTiers = "hot=16,warm=64,warm_block=16,archive_block=64,sinks=4,archive=";

const std::vector<float>& text() {
  static const std::vector<float> rows = tierkv::testing::rows_by_topic(kTokens, kWidth);
  return rows;
}

struct Reader {
  std::unique_ptr<AdaptiveKVCache> cache;
  SeqId seq = 0;
};

Result<std::unique_ptr<AdaptiveKVCache>> make(const std::string& archive, const std::string& more) {
  CacheConfig config;
  config.num_layers = kLayers, config.num_heads = kQueryHeads, config.num_kv_heads = kHeads, config.head_dim = kDim;
  TIERKV_RETURN_IF_ERROR(apply_inline(kTiers + archive + more, config));
  return AdaptiveKVCache::create(config);
}

Reader reader(const std::string& archive, const std::string& more, uint32_t tokens = kTokens) {
  Reader out;
  auto made = make(archive, more);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  out.cache = std::move(made).value();
  out.seq = out.cache->add_sequence().value();
  for (uint32_t t = 0; t < tokens; t += 40) {
    for (uint32_t l = 0; l < kLayers; ++l) {
      const RowsView rows = RowsView::f32(text().data() + t * kWidth, std::min(40u, tokens - t), kHeads, kDim);
      EXPECT_TRUE(out.cache->append(out.seq, l, rows, rows).ok());
    }
  }
  return out;
}

// Like some key of the text, in part.
std::vector<float> queries(uint32_t count, uint32_t seed, float size, float alike = 0.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out;
  for (uint32_t i = 0; i < count * kQueryHeads; ++i) {
    const float* key = text().data() + (rng() % kTokens) * kWidth + i % kQueryHeads / kGroup * kDim;
    for (uint32_t c = 0; c < kDim; ++c) out.push_back(size * normal(rng) + alike * key[c]);
  }
  return out;
}

Status attend(Reader& r, uint32_t layer, const std::vector<float>& rows, std::vector<float>& out,
              const AttentionOptions& options = {}) {
  const auto count = static_cast<uint32_t>(rows.size() / (kQueryHeads * kDim));
  out.assign(rows.size(), -7.0f);
  return r.cache->attention(r.seq, layer, RowsView::f32(rows.data(), count, kQueryHeads, kDim), out.data(), options);
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0.0, energy = 0.0;
  for (size_t i = 0; i < a.size(); ++i) error += std::pow(a[i] - b[i], 2), energy += std::pow(a[i], 2);
  return std::sqrt(error / energy);
}

const char* const kArchives[] = {"rot2", "kivi2-g32+top4", "even3+top3/mid2+top2", "fp16"};

TEST(Skip, NothingLeftOutIsTheSameToTheBit) {
  for (const char* archive : kArchives) {
    Reader all = reader(archive, "");
    for (const char* mode : {"bounded:0", "top:1000", "top_p:1"}) {
      Reader some = reader(archive, std::string(",skip=") + mode);
      for (const uint32_t count : {1u, 5u, 30u}) {
        for (const bool causal : {true, false}) {
          AttentionOptions options;
          options.causal = causal;
          std::vector<float> a, b;
          const auto q = queries(count, 5, 0.5f, 0.3f);
          ASSERT_TRUE(attend(all, 1, q, a, options).ok());
          ASSERT_TRUE(attend(some, 1, q, b, options).ok());
          EXPECT_EQ(a, b) << archive << " " << mode << " " << count;
        }
      }
      EXPECT_EQ(some.cache->memory_usage().skipped_blocks, 0u);
      EXPECT_EQ(some.cache->memory_usage().skipped_mass, 0.0);
    }
  }
}

// First positions of the blocks of a head that a step with these queries leaves out, and the bound it reports.
std::vector<uint32_t> left_out(Reader& r, uint32_t head, const std::vector<float>& rows, double& bound) {
  AdaptiveKVCache::Impl& impl = testing::impl_of(*r.cache);
  const auto sequence = impl.find(r.seq).value();
  tiers::StreamViews views;
  tiers::collect_views(impl.env, sequence->heads(0)[head], impl.planner->hot_codec(), views);
  const std::vector<attn::BlockView> before = views.views;
  const uint32_t position = kTokens - 1;
  SkipQuery query;
  query.queries = RowsView::f32(rows.data(), 1, kQueryHeads, kDim);
  query.positions = &position;
  query.params.head_dim = kDim;
  query.params.scale = 1.0f / std::sqrt(static_cast<float>(kDim));
  EXPECT_TRUE(may_skip(impl, query));
  impl.skip_counts.left_out_mass = 0.0;
  skip_blocks(impl, query, head, views);
  bound = impl.skip_counts.left_out_mass;
  EXPECT_EQ(views.views.size(), views.tiers.size());
  EXPECT_EQ(views.views.size(), views.stats.size());
  std::vector<uint32_t> out;
  size_t kept = 0;
  for (const attn::BlockView& view : before) {
    if (kept < views.views.size() && views.views[kept].keys.data() == view.keys.data()) ++kept;
    else out.push_back(view.ctx.first_position);
  }
  EXPECT_EQ(kept, views.views.size());
  return out;
}

// Against the mass that a report of the same cache, which reads everything, finds in the blocks that a step leaves out.
TEST(Skip, TheBoundHoldsForWhatIsLeftOut) {
  size_t by_bound = 0;
  for (const char* archive : kArchives) {
    for (const std::string mode : {"bounded:0.02", "top:5", "top_p:0.8"}) {
      Reader some = reader(archive, ",skip=" + mode);
      for (uint32_t seed = 0; seed < 14; ++seed) {
        auto q = queries(1, seed, 0.1f * static_cast<float>(seed % 3), 0.3f * static_cast<float>(seed % 7));
        if (seed % 2 == 1) {  // about the newest token, so that little is left for others
          for (size_t i = 0; i < q.size(); ++i)
            q[i] = 3.0f * text()[(kTokens - 1) * kWidth + i / kDim / kGroup * kDim + i % kDim] + 0.3f * q[i];
        }
        std::vector<float> out;
        MassReport report;
        AttentionOptions options;
        options.mass = &report;
        const uint64_t skipped = some.cache->memory_usage().skipped_blocks;
        ASSERT_TRUE(attend(some, 0, q, out, options).ok());
        EXPECT_EQ(some.cache->memory_usage().skipped_blocks, skipped) << "who reports mass reads everything";
        for (uint32_t h = 0; h < kHeads; ++h) {
          double bound = 0.0, mass = 0.0;
          const std::vector<uint32_t> gone = left_out(some, h, q, bound);
          for (const BlockMass& block : report.blocks) {
            if (block.kv_head == h && std::count(gone.begin(), gone.end(), block.first_position)) mass += block.mass;
          }
          EXPECT_LE(mass, kGroup * bound + 1e-4) << archive << " " << mode << " " << seed;
          EXPECT_EQ(gone.empty(), bound == 0.0);
          if (mode != "bounded:0.02") continue;
          EXPECT_LE(bound, 0.02);
          by_bound += gone.size();
        }
      }
    }
  }
  EXPECT_GT(by_bound, 100u);
}

TEST(Skip, TopReadsSoManyOfEachHeadAndPromptsReadAll) {
  Reader some = reader("rot2", ",skip=top:6"), all = reader("rot2", "");
  std::vector<float> a, b;
  ASSERT_TRUE(attend(some, 0, queries(1, 3, 1.0f), a).ok());
  MemoryStats m = some.cache->memory_usage();
  EXPECT_EQ(m.read_blocks, 6u * kHeads);
  EXPECT_GT(m.skipped_blocks, 60u * kHeads);
  EXPECT_GT(m.skipped_mass, 0.0);
  EXPECT_LE(m.skipped_mass, 1.0);
  const auto prompt = queries(20, 3, 1.0f);
  ASSERT_TRUE(attend(some, 0, prompt, a).ok());
  ASSERT_TRUE(attend(all, 0, prompt, b).ok());
  EXPECT_EQ(a, b);
  EXPECT_EQ(some.cache->memory_usage().skipped_blocks, m.skipped_blocks);
}

// A query that looks for one passage finds it, and only it is read.
TEST(Skip, FindsThePassageAQueryIsAbout) {
  for (const char* mode : {"top:10", "top_p:0.98"}) {
    for (const char* archive : {"rot2", "even3+top3/mid2+top2"}) {
      Reader some = reader(archive, std::string(",skip=") + mode), all = reader(archive, "");
      for (const uint32_t passage : {700u, 2200u, 4300u}) {
        std::vector<float> q, a, b;
        for (uint32_t h = 0; h < kQueryHeads; ++h) {
          const float* key = text().data() + passage * kWidth + h / kGroup * kDim;
          for (uint32_t c = 0; c < kDim; ++c) q.push_back(3.0f * key[c]);
        }
        ASSERT_TRUE(attend(some, 0, q, a).ok());
        ASSERT_TRUE(attend(all, 0, q, b).ok());
        EXPECT_LT(distance(b, a), 0.1) << mode << " " << archive << " " << passage;
      }
      EXPECT_GT(some.cache->memory_usage().skipped_blocks, 3u * some.cache->memory_usage().read_blocks) << mode << archive;
    }
  }
}

// Of every block that has a summary: the box made of its rows as they are read now.
void expect_right_summaries(const AdaptiveKVCache& cache, SeqId seq, size_t at_least) {
  AdaptiveKVCache::Impl& impl = testing::impl_of(cache);
  const auto sequence = impl.find(seq).value();
  size_t found = 0;
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (const tiers::HeadStream& s : sequence->heads(l)) {
      for (const tiers::BlockRef& ref : s.blocks) {
        if (!ref.block.resident()) continue;
        const auto room = impl.store->summary(ref.block);
        EXPECT_EQ(room.empty(), ref.block.tier() != Tier::archive);
        if (room.empty()) continue;
        ASSERT_NE(tiers::summary_of(impl.env, ref.block), nullptr);
        std::vector<std::byte> want(room.size());
        tiers::make_summary(impl.env, ref.block, ref, s.layer, s.head, want.data());
        if (ref.rows == ref.tokens() && ref.live == ref.rows) {
          EXPECT_TRUE(std::equal(room.begin(), room.end(), want.begin()));
        }
        ++found;
      }
    }
  }
  EXPECT_GE(found, at_least);
}

TEST(Skip, SummariesGoWhereBlocksGo) {
  TestFolder folder;
  Reader some = reader("rot2+top4", ",skip=top:6,cold=" + folder.path()), plain = reader("rot2+top4", "");
  const size_t blocks = kLayers * kHeads * 55;
  expect_right_summaries(*some.cache, some.seq, blocks);
  const MemoryStats with = some.cache->memory_usage(), without = plain.cache->memory_usage();
  EXPECT_GT(with[Tier::archive].bytes(), without[Tier::archive].bytes() + blocks * 128) << "they are counted";
  EXPECT_EQ(with[Tier::archive].payload_bytes, without[Tier::archive].payload_bytes);
  const SeqId fork = some.cache->fork(some.seq).value();
  const auto frozen = some.cache->freeze(some.seq).value();
  EXPECT_EQ(frozen, plain.cache->freeze(plain.seq).value()) << "they are in no snapshot";
  expect_right_summaries(*some.cache, some.cache->unfreeze(frozen).value(), blocks);
  ASSERT_TRUE(some.cache->truncate(some.seq, 3001).ok());
  expect_right_summaries(*some.cache, some.seq, blocks / 2);
  ASSERT_TRUE(some.cache->promote(fork, 100, 800).ok());
  expect_right_summaries(*some.cache, fork, blocks);
  EXPECT_GT(some.cache->memory_usage().promoted_tokens, 0u);
  ASSERT_TRUE(some.cache->demote(fork).ok());
  expect_right_summaries(*some.cache, fork, blocks);
  std::vector<float> out;
  ASSERT_TRUE(attend(some, 0, queries(1, 3, 1.0f), out).ok());
  for (const SeqId seq : some.cache->sequences()) ASSERT_TRUE(some.cache->remove(seq).ok());
  ASSERT_TRUE(some.cache->flush().ok());
  EXPECT_EQ(some.cache->memory_usage().total_bytes, some.cache->memory_usage().free_bytes);
}

TEST(Skip, GoesWithSpillingAndWithEviction) {
  TestFolder folder;
  Reader all = reader("rot2", "");
  Reader few = reader("rot2", ",skip=top:1000,cold=" + folder.path() + ",spill=exact,budget=500KiB");
  EXPECT_GT(few.cache->memory_usage().spilled_tokens, 0u);
  std::vector<float> a, b;
  const auto q = queries(1, 3, 1.0f);
  ASSERT_TRUE(attend(few, 0, q, a).ok());
  ASSERT_TRUE(attend(all, 0, q, b).ok());
  EXPECT_LT(distance(b, a), 2e-3);
  Reader evicting = reader("rot2", ",skip=top:3,evict=h2o,max_seq_len=1000");
  ASSERT_TRUE(attend(evicting, 0, q, a).ok());
  EXPECT_EQ(evicting.cache->memory_usage().read_blocks, 3u * kHeads);
  expect_right_summaries(*evicting.cache, evicting.seq, 1);
}

TEST(Skip, SaysWhatItDoesNotKnow) {
  for (const char* wrong :
       {"some", "top", "top:0", "top:x", "top:-1", "bounded:1", "bounded:-1", "bounded:0.1x", "top_p:0", "top_p:1.1", "exact"}) {
    const auto made = make("rot2", std::string(",skip=") + wrong);
    ASSERT_FALSE(made.ok()) << wrong;
    EXPECT_NE(made.status().message().find("top_p:P"), std::string::npos) << made.status().message();
  }
  EXPECT_TRUE(make("rot2", ",skip=off").ok());
}

}  // namespace
}  // namespace tierkv::cache
