// The archive of a model that nobody knows: hard rows get more bits than easy ones, and what was chosen stays.
#include "cache/fallback.h"

#include <gtest/gtest.h>

#include <random>

#include "tierkv/cache.h"
#include "tierkv/snapshot.h"

namespace tierkv {
namespace {

constexpr uint32_t kHeads = 4, kKvHeads = 2, kDim = 64, kBlock = 128;
// Without a preset: tiers so short that an archive comes soon.
constexpr const char* kTiers = "hot=32,warm=128,warm_codec=even4,archive=auto,archive_block=128,calibrate=off";

using Rows = std::vector<float>;

// `outliers` channels are forty times the others, in keys and in queries.
Rows rows_of(uint32_t rows, uint32_t seed, float size, uint32_t outliers = 0) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, size);
  Rows out(static_cast<size_t>(rows) * kDim);
  for (size_t i = 0; i < out.size(); ++i) out[i] = normal(random) * (i % kDim < outliers ? 40.0f : 1.0f);
  return out;
}

class Choices {
 public:
  Choices() : codecs_(kDim) {
    for (const std::string_view name : quant::fallback_choices()) {
      all.push_back(codecs_.get(quant::parse_codec_pair(name).value(), kBlock).value());
    }
  }
  uint32_t of(const Rows& keys, const Rows& values, const Rows& power) const {
    const cache::BlockRows head{keys.data(), values.data(), power.empty() ? nullptr : power.data(), {0, 0, 0, nullptr}};
    return cache::smallest_good(all, {&head, 1});
  }
  std::vector<const quant::CodecEntry*> all;

 private:
  quant::CodecSet codecs_;
};

// The power of queries whose scores over keys of spread 1 vary by `spread`.
Rows power_for(double spread) { return Rows(kDim, static_cast<float>(spread / kDim)); }

TEST(Fallback, ChoicesGrow) {
  const Choices choices;
  for (size_t i = 1; i < choices.all.size(); ++i) {
    const auto bytes = [&](size_t c) { return choices.all[c]->key->bytes() + choices.all[c]->value->bytes(); };
    EXPECT_LT(bytes(i - 1), bytes(i)) << i;
  }
  const auto names = quant::fallback_choices();
  EXPECT_NE(std::find(names.begin(), names.end(), quant::resolve_auto("auto", false)), names.end())
      << "what is used until there is a choice must be one of them";
}

TEST(Fallback, TheSharperTheScoresTheMoreBits) {
  const Choices choices;
  const Rows keys = rows_of(kBlock, 1, 1.0f), values = rows_of(kBlock, 2, 1.0f);
  uint32_t before = 0;
  for (const double spread : {0.01, 0.1, 1.0, 4.0, 16.0, 64.0, 1000.0}) {
    const uint32_t choice = choices.of(keys, values, power_for(spread));
    EXPECT_GE(choice, before) << spread;
    before = choice;
  }
  EXPECT_EQ(choices.of(keys, values, power_for(0.1)), 0u) << "scores that hardly differ need the fewest";
  EXPECT_EQ(before, choices.all.size() - 1) << "scores that differ by thirty need the most there is";
}

TEST(Fallback, OutlierChannelsThatQueriesLookAtGetMoreBits) {
  const Choices choices;
  const Rows values = rows_of(kBlock, 2, 1.0f);
  Rows power = power_for(1.0);
  const uint32_t easy = choices.of(rows_of(kBlock, 1, 1.0f), values, power);
  for (uint32_t c = 0; c < 3; ++c) power[c] *= 40.0f * 40.0f;
  const uint32_t hard = choices.of(rows_of(kBlock, 1, 1.0f, 3), values, power);
  EXPECT_LT(easy, hard);
  // The same rows where no query was seen: taken as usual, so neither the least nor an error.
  const uint32_t unseen = choices.of(rows_of(kBlock, 1, 1.0f), values, {});
  EXPECT_EQ(quant::to_string(choices.all[unseen]->pair), quant::resolve_auto("auto", false));
}

TEST(Fallback, ConstantRowsNeedNothing) {
  const Choices choices;
  EXPECT_EQ(choices.of(Rows(kBlock * kDim, 1.5f), Rows(kBlock * kDim, 0.0f), power_for(100.0)), 0u);
  EXPECT_EQ(choices.of(Rows(kBlock * kDim, 0.0f), Rows(kBlock * kDim, 2.0f), {}), 0u);
}

TEST(CodingError, IsThatOfTheCodesInTheUnitsOfScores) {
  quant::CodecSet codecs(kDim);
  const Rows keys = rows_of(kBlock, 1, 1.0f), values = rows_of(kBlock, 2, 3.0f);
  const auto measured = [&](const char* name, float power) {
    const auto entry = codecs.get(quant::parse_codec_pair(name).value(), kBlock).value();
    return quant::coding_error(*entry, keys.data(), values.data(), {0, 0, 0, nullptr}, Rows(kDim, power).data()).value();
  };
  EXPECT_LT(measured("fp16", 1.0f).scores, 1e-4);
  EXPECT_LT(measured("fp16", 1.0f).values, 1e-6);
  const quant::CodingError three = measured("even3/mid2", 1.0f), four = measured("even4/mid3", 1.0f);
  EXPECT_NEAR(measured("even3/mid2", 4.0f).scores, 4.0 * three.scores, 1e-3 * three.scores);
  // A bit more is a quarter of the squared error, or a little more.
  EXPECT_NEAR(four.scores / three.scores, 0.27, 0.05);
  EXPECT_NEAR(four.values / three.values, 0.27, 0.05);
}

// Two layers, the second with outliers that its queries look at.
struct World {
  World() {
    CacheConfig config;
    config.num_layers = 2, config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
    EXPECT_TRUE(apply_spec(kTiers, config).ok());
    cache = AdaptiveKVCache::create(config).value();
  }
  // The rows of a position are the same in every world.
  void feed(SeqId seq, uint32_t tokens) {
    for (uint32_t done = 0; done < tokens; done += 32) {
      for (uint32_t l = 0; l < 2; ++l) {
        const uint32_t at = cache->length(seq, l).value(), outliers = l == 0 ? 0 : 4;
        const Rows keys = rows_of(32 * kKvHeads, 100 * at + l, 1.0f, outliers), values = rows_of(32 * kKvHeads, 7 * at + l, 1.0f);
        const Rows queries = rows_of(32 * kHeads, 13 * at + l, l == 0 ? 0.3f : 1.0f, outliers);
        const Status status =
            cache->append(seq, l, RowsView::f32(keys.data(), 32, kKvHeads, kDim), RowsView::f32(values.data(), 32, kKvHeads, kDim));
        ASSERT_TRUE(status.ok()) << status.to_string();
        Rows out(queries.size());
        ASSERT_TRUE(cache->attention(seq, l, RowsView::f32(queries.data(), 32, kHeads, kDim), out.data()).ok());
      }
    }
  }
  std::string sentence() const { return cache->learning().sentence; }
  std::unique_ptr<AdaptiveKVCache> cache;
};

TEST(Fallback, EveryLayerChoosesForItself) {
  World world;
  const SeqId seq = world.cache->add_sequence().value();
  EXPECT_EQ(world.cache->archive_codec(0), "even4/mid2");
  EXPECT_NE(world.sentence().find("until the first old rows"), std::string::npos) << world.sentence();
  world.feed(seq, 256);
  EXPECT_EQ(world.cache->archive_codec(0), "even4/mid2") << "nothing is due for the archive yet";
  world.feed(seq, 256);
  EXPECT_EQ(world.cache->archive_codec(0), "even4/mid2");
  EXPECT_EQ(world.cache->archive_codec(1), "even6/mid4");
  EXPECT_NE(world.sentence().find("even4/mid2 in 1 layer, even6/mid4 in 1"), std::string::npos) << world.sentence();
  EXPECT_NE(world.sentence().find("chosen by the model's own rows"), std::string::npos) << world.sentence();
  // What was set does not change by it: who keeps thresholds for a model keeps the same ones before and after.
  EXPECT_EQ(world.cache->thresholds()[0].archive_bits, 4u);
}

TEST(Fallback, TheFirstSequenceDecidesForAll) {
  World world;
  const SeqId first = world.cache->add_sequence().value();
  world.feed(first, 512);
  const std::string chosen = world.cache->archive_codec(0) + " " + world.cache->archive_codec(1);
  const SeqId fork = world.cache->fork(first).value();
  ASSERT_TRUE(world.cache->truncate(first, 64).ok());
  ASSERT_TRUE(world.cache->remove(first).ok());
  world.feed(fork, 256);
  EXPECT_EQ(world.cache->archive_codec(0) + " " + world.cache->archive_codec(1), chosen);
}

TEST(Fallback, AnotherCacheGoesOnAsTheSnapshotWas) {
  World here, there;
  const SeqId seq = here.cache->add_sequence().value();
  here.feed(seq, 512);
  const std::vector<std::byte> bytes = here.cache->freeze(seq).value();
  const SeqId thawed = there.cache->unfreeze(bytes).value();
  for (uint32_t l = 0; l < 2; ++l) EXPECT_EQ(there.cache->archive_codec(l), here.cache->archive_codec(l));
  here.feed(seq, 512);
  there.feed(thawed, 512);
  EXPECT_EQ(here.cache->freeze(seq).value(), there.cache->freeze(thawed).value());
}

TEST(Fallback, ASnapshotFromBeforeTheChoiceMakesNone) {
  World here, there;
  const SeqId seq = here.cache->add_sequence().value();
  here.feed(seq, 256);
  const SeqId thawed = there.cache->unfreeze(here.cache->freeze(seq).value()).value();
  here.feed(seq, 512);
  there.feed(thawed, 512);
  EXPECT_EQ(here.cache->archive_codec(1), "even4/mid2") << "the other cache never saw the queries that would have chosen";
  EXPECT_EQ(here.cache->freeze(seq).value(), there.cache->freeze(thawed).value());
}

TEST(Fallback, WhoNamesACodecGetsIt) {
  for (const char* kv :
       {"balanced,calibrate=off,archive=even4/mid2", "balanced,calibrate=off,archive=auto1", "balanced,archive=rot2"}) {
    CacheConfig config;
    config.num_layers = 1, config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
    ASSERT_TRUE(apply_spec(kv, config).ok());
    const auto cache = AdaptiveKVCache::create(config).value();
    EXPECT_EQ(cache->learning().sentence.find("chosen"), std::string::npos) << kv;
    EXPECT_EQ(cache->learning().sentence.find("choose"), std::string::npos) << kv;
  }
}

}  // namespace
}  // namespace tierkv
