// A cache with calibrated tables: attention over klt blocks, what snapshots say about them, and tables that arrive late.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "solve/testing.h"
#include "tierkv/cache.h"
#include "tierkv/snapshot.h"

namespace tierkv {
namespace {

using calib::SyntheticModel;
using calib::SyntheticShape;

CalibrationPtr tables(uint32_t seed = 1) {
  static std::map<uint32_t, CalibrationPtr> made;
  SyntheticShape shape;
  shape.seed = seed;
  CalibrationPtr& known = made[seed];
  if (!known) known = solve::klt_calibration(SyntheticModel(shape).statistics()).value();
  return known;
}

CacheConfig config_of(const char* kv) {
  CacheConfig config;
  config.num_layers = 2, config.num_heads = 4, config.num_kv_heads = 2, config.head_dim = 64;
  EXPECT_TRUE(apply_spec(kv, config).ok()) << kv;
  return config;
}

struct Filled {
  SyntheticModel model{SyntheticShape{}};
  std::unique_ptr<AdaptiveKVCache> cache;
  SeqId seq = 0;
  std::vector<float> keys[2], values[2];

  Filled(const char* kv, CalibrationPtr calibration) {
    auto made = AdaptiveKVCache::create(config_of(kv), std::move(calibration));
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    cache = std::move(*made);
    seq = cache->add_sequence().value();
  }
  void append(uint32_t count) {
    for (uint32_t l = 0; l < 2; ++l) {
      const uint32_t from = cache->length(seq, l).value();
      std::vector<float> k, v;
      for (uint32_t t = 0; t < count; ++t) {
        for (uint32_t h = 0; h < 2; ++h) {
          const auto key = model.key(l, h, from + t);
          k.insert(k.end(), key.begin(), key.end());
        }
      }
      v = model.noise(count * 2 * 64);
      ASSERT_TRUE(cache->append(seq, l, RowsView::f32(k.data(), count, 2, 64), RowsView::f32(v.data(), count, 2, 64)).ok());
      keys[l].insert(keys[l].end(), k.begin(), k.end());
      values[l].insert(values[l].end(), v.begin(), v.end());
    }
  }
  std::vector<float> attend(uint32_t layer) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<float> queries(4 * 64), out(4 * 64);
    for (float& q : queries) q = 0.3f * normal(random);
    EXPECT_TRUE(cache->attention(seq, layer, RowsView::f32(queries.data(), 1, 4, 64), out.data()).ok());
    return out;
  }
};

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double d = 0.0, n = 0.0;
  for (size_t i = 0; i < a.size(); ++i) d += std::pow(a[i] - b[i], 2), n += std::pow(b[i], 2);
  return std::sqrt(d / n);
}

constexpr const char* kKlt = "hot=32,warm=128,archive=kltk4/fp16";

TEST(Calibrated, AutoIsKltWithTablesAndEvenWithout) {
  EXPECT_EQ(Filled("balanced", tables()).cache->archive_codec(0), "klt1.875");
  EXPECT_EQ(Filled("balanced", nullptr).cache->archive_codec(0), "even4/mid2");
  EXPECT_EQ(Filled("quality", tables()).cache->archive_codec(1), "klt2.5");
  EXPECT_EQ(Filled("balanced,archive=auto1", tables()).cache->archive_codec(1), "klt1.5");
  EXPECT_EQ(Filled("balanced,archive=auto1", nullptr).cache->archive_codec(1), "even3/mid2");
}

TEST(Calibrated, AttentionIsNearFp16) {
  Filled klt(kKlt, tables()), plain("fp16", nullptr);
  klt.append(900);
  plain.append(900);
  EXPECT_GT(klt.cache->memory_usage()[Tier::archive].tokens, 1500u);
  for (uint32_t l = 0; l < 2; ++l) EXPECT_LT(distance(klt.attend(l), plain.attend(l)), 0.12) << l;
}

// What attention sees and what get() decodes are the same rows.
TEST(Calibrated, AttentionOnCodesIsAttentionOnDecodedRows) {
  Filled klt(kKlt, tables());
  klt.append(900);
  std::vector<uint32_t> all(900);
  for (uint32_t i = 0; i < 900; ++i) all[i] = i;
  std::vector<float> k(900 * 2 * 64), v(900 * 2 * 64);
  ASSERT_TRUE(klt.cache->get(klt.seq, 1, all, k.data(), v.data()).ok());
  Filled plain("fp16", nullptr);
  ASSERT_TRUE(plain.cache->append(plain.seq, 1, RowsView::f32(k.data(), 900, 2, 64), RowsView::f32(v.data(), 900, 2, 64)).ok());
  EXPECT_LT(distance(klt.attend(1), plain.attend(1)), 5e-3);
}

TEST(Calibrated, SnapshotsNeedTheSameTables) {
  Filled klt(kKlt, tables());
  klt.append(700);
  const auto bytes = klt.cache->freeze(klt.seq);
  ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();

  Filled same(kKlt, tables());
  const auto back = same.cache->unfreeze(*bytes);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  same.seq = *back;
  EXPECT_TRUE(same.cache->freeze(same.seq).value() == *bytes);
  EXPECT_EQ(same.attend(0), klt.attend(0));

  Filled other(kKlt, tables(2)), none("balanced", nullptr);
  for (Filled* f : {&other, &none}) {
    const auto refused = f->cache->unfreeze(*bytes);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.status().message().find("calibration"), std::string::npos) << refused.status().message();
  }
  const auto info = inspect_snapshot(*bytes, tables());
  ASSERT_TRUE(info.ok()) << info.status().to_string();
  EXPECT_EQ(info->calibration, tables()->id());
  EXPECT_FALSE(info->lacks_tables);
}

TEST(Calibrated, ASnapshotIsCheckedWithoutItsTables) {
  Filled klt(kKlt, tables());
  klt.append(700);
  const std::vector<std::byte> bytes = klt.cache->freeze(klt.seq).value();
  const SnapshotInfo full = inspect_snapshot(bytes, tables()).value();
  for (const CalibrationPtr& given : {CalibrationPtr(), tables(2)}) {
    const auto info = inspect_snapshot(bytes, given);
    ASSERT_TRUE(info.ok()) << info.status().to_string();
    EXPECT_TRUE(info->lacks_tables);
    EXPECT_EQ(info->calibration, tables()->id());
    EXPECT_EQ(info->length, 700u);
    EXPECT_EQ(info->codecs, full.codecs);
    EXPECT_EQ(info->blocks, 0u);
  }
  // Every byte is under the checksum.
  for (size_t at = 0; at < bytes.size(); at += 1 + bytes.size() / 97) {
    std::vector<std::byte> changed = bytes;
    changed[at] ^= std::byte{4};
    EXPECT_FALSE(inspect_snapshot(changed).ok()) << at;
  }
}

// Warm blocks are made and read with the tables of their own head, so that they are the same rows after a snapshot.
TEST(Calibrated, WarmBlocksComeBackAsTheyWere) {
  const char* kv = "hot=32,warm=all,warm_codec=kltk4/fp16";
  Filled f(kv, tables()), plain("fp16", nullptr);
  f.append(700);
  plain.append(700);
  EXPECT_GT(f.cache->memory_usage()[Tier::warm].tokens, 1000u);
  Filled again(kv, tables());
  const auto back = again.cache->unfreeze(f.cache->freeze(f.seq).value());
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  again.seq = *back;
  for (uint32_t l = 0; l < 2; ++l) {
    EXPECT_EQ(again.attend(l), f.attend(l)) << l;
    EXPECT_LT(distance(f.attend(l), plain.attend(l)), 0.12) << l;
  }
}

TEST(Calibrated, TablesMayArriveLate) {
  Filled f("hot=32,warm=128,archive=auto", nullptr);
  f.append(600);
  ASSERT_TRUE(f.cache->set_calibration(tables()).ok());
  EXPECT_EQ(f.cache->archive_codec(0), "klt1.875");
  f.append(600);
  const auto frozen = f.cache->freeze(f.seq);
  ASSERT_TRUE(frozen.ok());
  const auto info = inspect_snapshot(*frozen, tables());
  ASSERT_TRUE(info.ok()) << info.status().to_string();
  std::string codecs;
  for (const std::string& c : info->codecs) codecs += c + " ";
  EXPECT_NE(codecs.find("even4/mid2 x128"), std::string::npos) << codecs;
  EXPECT_NE(codecs.find("klt1.875 x128"), std::string::npos) << codecs;
}

TEST(Calibrated, EvictedSequencesStayReadable) {
  Filled f("hot=32,warm=64,archive=kltk4/fp16,max_seq_len=400,evict=h2o", tables());
  for (int i = 0; i < 12; ++i) {
    f.append(100);
    for (uint32_t l = 0; l < 2; ++l) {
      for (const float v : f.attend(l)) ASSERT_TRUE(std::isfinite(v));
    }
  }
  EXPECT_TRUE(f.cache->verify(f.seq).ok());
  const auto bytes = f.cache->freeze(f.seq);
  ASSERT_TRUE(bytes.ok());
  EXPECT_TRUE(f.cache->unfreeze(*bytes).ok());
}

TEST(Calibrated, AnotherShapeIsRefused) {
  CacheConfig config = config_of("balanced");
  config.num_layers = 3;
  EXPECT_FALSE(AdaptiveKVCache::create(config, tables()).ok());
  config = config_of("archive=klt1.5");
  const auto without = AdaptiveKVCache::create(config);
  ASSERT_FALSE(without.ok());
  EXPECT_NE(without.status().message().find("calibrate"), std::string::npos);
}

TEST(Calibrated, WhoWantsACalibration) {
  for (const char* kv :
       {"balanced", "quality", "compact", "archive=klt2", "warm_codec=kltk2/rot4", "archive=squat2", "archive=adaptive"})
    EXPECT_TRUE(wants_calibration(config_of(kv))) << kv;
  for (const char* kv : {"fp16", "hot=all", "archive=rot2", "warm=all", "window=32,hot=64"})
    EXPECT_FALSE(wants_calibration(config_of(kv))) << kv;
}

TEST(Calibrated, TablesAreCounted) {
  Filled f("balanced", tables());
  EXPECT_GT(f.cache->memory_usage().table_bytes, 4u * 64 * 64 * 4);
  const CalibrationPtr second = tables(2);
  const uint64_t before = f.cache->memory_usage().table_bytes;
  ASSERT_TRUE(f.cache->set_calibration(second).ok());
  EXPECT_GT(f.cache->memory_usage().table_bytes, before + second->bytes()) << "blocks may still need the first";
  EXPECT_EQ(Filled("balanced", nullptr).cache->memory_usage().table_bytes, 0u);
}

}  // namespace
}  // namespace tierkv
