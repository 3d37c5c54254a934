// The archive codec `adaptive`: ADR-004's choice by length, in blocks that know their own codec.
#include <gtest/gtest.h>

#include "snapshot/testing.h"
#include "solve/testing.h"
#include "tierkv/snapshot.h"

namespace tierkv::cache {
namespace {

using namespace tierkv::snapshot::testing;

constexpr uint32_t kDim = 32;

calib::Statistics statistics() {
  calib::SyntheticShape shape;
  shape.layers = 1, shape.heads = 1, shape.kv_heads = 1, shape.head_dim = kDim, shape.tokens = 512;
  return calib::SyntheticModel(shape).statistics();
}

CalibrationPtr tables() { return solve::kvquant_and_squat(statistics()).value(); }

std::unique_ptr<AdaptiveKVCache> make(const std::string& spec, CalibrationPtr calibration) {
  CacheConfig config;
  config.num_layers = 1, config.num_heads = 1, config.num_kv_heads = 1, config.head_dim = kDim;
  EXPECT_TRUE(apply_inline(spec, config).ok()) << spec;
  auto made = AdaptiveKVCache::create(config, std::move(calibration));
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return std::move(made).value();
}

// Codecs of the archive blocks in order of first use.
std::string codecs(const AdaptiveKVCache& cache, SeqId seq) {
  const Bytes bytes = frozen(cache, seq);
  const auto info = inspect_snapshot(std::span<const std::byte>(bytes), cache.calibration());
  EXPECT_TRUE(info.ok()) << info.status().to_string();
  std::string out;
  for (const std::string& codec : info->codecs) {
    if (codec.starts_with("fp16") || codec.starts_with("even4")) continue;  // sinks and warm
    out += codec.substr(0, codec.find(' ')) + " ";
  }
  return out;
}

TEST(Adaptive, ChoosesByTheLengthWhenABlockIsArchived) {
  auto cache = make("hot=32,warm=64,archive=adaptive,sinks=4", tables());
  EXPECT_EQ(cache->archive_codec(0), "kivi2, from 2048 tokens on squat2, from 8192 tokens on kvquant3");
  const SeqId seq = cache->add_sequence().value();
  std::mt19937 rng(1);
  append(*cache, seq, rng, 1000);
  EXPECT_EQ(codecs(*cache, seq), "kivi2 ");
  append(*cache, seq, rng, 3000);
  EXPECT_EQ(codecs(*cache, seq), "kivi2 squat2 ");
  append(*cache, seq, rng, 5000);
  EXPECT_EQ(codecs(*cache, seq), "kivi2 squat2 kvquant3 ");
  ASSERT_TRUE(cache->verify(seq).ok());

  // What each part takes: a kvquant3 block is larger, and every byte is counted.
  const MemoryStats nine = cache->memory_usage(seq).value();
  uint64_t tokens = 0;
  for (const TierMemory& tier : nine.tier) tokens += tier.tokens;
  EXPECT_EQ(tokens, 9000u);
  auto plain = make("hot=32,warm=64,archive=kivi2,sinks=4", nullptr);
  const SeqId other = plain->add_sequence().value();
  append(*plain, other, rng, 9000);
  const MemoryStats two = plain->memory_usage(other).value();
  EXPECT_EQ(nine[Tier::archive].tokens, two[Tier::archive].tokens);
  EXPECT_GT(nine[Tier::archive].payload_bytes, two[Tier::archive].payload_bytes);
  EXPECT_LT(nine[Tier::archive].payload_bytes, two[Tier::archive].payload_bytes * 3 / 2);

  const auto back = cache->unfreeze(frozen(*cache, seq));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(frozen(*cache, *back), frozen(*cache, seq));
  std::mt19937 one(2), two_rng(2);
  std::vector<float> a, b;
  append(*cache, seq, one, 300), append(*cache, *back, two_rng, 300);
  attend(*cache, seq, one, 3, a), attend(*cache, *back, two_rng, 3, b);
  EXPECT_TRUE(same_bits(a, b));
  EXPECT_EQ(frozen(*cache, *back), frozen(*cache, seq));
}

TEST(Adaptive, GoesBackWithTheLength) {
  auto cache = make("hot=32,warm=0,archive=adaptive,sinks=4", tables());
  const SeqId seq = cache->add_sequence().value();
  std::mt19937 rng(1);
  append(*cache, seq, rng, 2600);
  EXPECT_EQ(codecs(*cache, seq), "kivi2 squat2 ");
  ASSERT_TRUE(cache->truncate(seq, 1500).ok());
  append(*cache, seq, rng, 400);
  EXPECT_EQ(codecs(*cache, seq), "kivi2 ");
}

TEST(Adaptive, FallsBackWithoutTablesAndSaysSo) {
  auto cache = make("hot=32,warm=0,archive=adaptive,sinks=4", nullptr);
  EXPECT_EQ(cache->archive_codec(0), "kivi2, from 2048 tokens on kivi2, from 8192 tokens on kivi3");
  const SeqId seq = cache->add_sequence().value();
  std::mt19937 rng(1);
  append(*cache, seq, rng, 4000);
  EXPECT_EQ(codecs(*cache, seq), "kivi2 ");
  append(*cache, seq, rng, 5000);
  EXPECT_EQ(codecs(*cache, seq), "kivi2 kivi3 ");
  // Tables may come late, and may be of one of the two.
  auto partial = std::make_shared<calib::Calibration>(statistics(), calib::Origin{"synthetic", 512, "test"});
  partial->squat = tables()->squat;
  ASSERT_TRUE(partial->finish().ok());
  ASSERT_TRUE(cache->set_calibration(partial).ok());
  EXPECT_EQ(cache->archive_codec(0), "kivi2, from 2048 tokens on squat2, from 8192 tokens on kivi3");
  ASSERT_TRUE(cache->set_calibration(tables()).ok());
  append(*cache, seq, rng, 300);
  EXPECT_EQ(codecs(*cache, seq), "kivi2 kivi3 kvquant3 ");
}

TEST(Adaptive, IsLeftAloneByAdaptationOfWidths) {
  auto cache = make("hot=32,warm=64,archive=adaptive,sinks=4,quality_target=0.9", nullptr);
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(cache->adapt_thresholds({0.1}).ok());
  EXPECT_GT(cache->thresholds()[0].hot, 32u);
  EXPECT_EQ(cache->archive_codec(0), "kivi2, from 2048 tokens on kivi2, from 8192 tokens on kivi3");
}

}  // namespace
}  // namespace tierkv::cache
