// Snapshots of every row of the registry, those with calibrated tables included: back to the bit, and damage is found.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/checksum.h"
#include "calib/calibration.h"
#include "quant/table_testing.h"
#include "snapshot/testing.h"
#include "tierkv/snapshot.h"

namespace tierkv::snapshot {
namespace {

using namespace tierkv::snapshot::testing;
using quant::testing::TableModel;

constexpr uint32_t kDim = 32;

// One layer and one KV head, as the tables have them.
std::unique_ptr<AdaptiveKVCache> cache_of(const std::string& archive, CalibrationPtr tables) {
  CacheConfig config;
  config.num_layers = config.num_heads = config.num_kv_heads = 1;
  config.head_dim = kDim;
  config.tiers = {8, 0, "fp16", archive, 2, 0};
  config.warm_block = config.archive_block = 16;
  auto made = AdaptiveKVCache::create(config, std::move(tables));
  EXPECT_TRUE(made.ok()) << archive << ": " << made.status().to_string();
  return made.ok() ? std::move(made).value() : nullptr;
}

struct Filled {
  std::unique_ptr<AdaptiveKVCache> cache;
  SeqId seq = 0;
  Bytes bytes;

  Filled(const std::string& archive, const CalibrationPtr& tables) : cache(cache_of(archive, tables)) {
    if (!cache) return;
    seq = cache->add_sequence().value();
    const uint32_t tokens = 60;
    const auto keys = TableModel::of(kDim).turned(quant::testing::random_rows({tokens, kDim}, 5), 0);
    const auto values = quant::testing::random_rows({tokens, kDim}, 6);
    EXPECT_TRUE(
        cache->append(seq, 0, RowsView::f32(keys.data(), tokens, 1, kDim), RowsView::f32(values.data(), tokens, 1, kDim)).ok());
    bytes = frozen(*cache, seq);
  }
};

// fn(archive codec, tables or null) for every row, at its narrowest width and one above, and with better rows where it has a width.
template <class Fn>
void for_every_row(Fn&& fn) {
  ASSERT_TRUE(TableModel::of(kDim).status().ok()) << TableModel::of(kDim).status().message();
  std::set<uint16_t> met;
  for (const quant::CodecRow& row : quant::codec_rows()) {
    const std::vector<int> widths = quant::testing::widths_of(row);
    for (size_t i = 0; i < std::min<size_t>(widths.size(), 2); ++i) {
      for (const uint8_t top : {0, 3}) {
        if (top != 0 && (widths[i] == 0 || i != 0 || row.values != nullptr)) continue;
        const quant::CodecSpec spec{row.id, static_cast<uint8_t>(widths[i]), top, 0, 0};
        SCOPED_TRACE(quant::to_string(spec));
        fn(quant::to_string(spec), row.calibrated() ? TableModel::of(kDim).calibration() : nullptr);
        if (::testing::Test::HasFatalFailure()) return;
        met.insert(row.id);
      }
    }
  }
  ASSERT_EQ(met.size(), quant::codec_rows().size()) << "a row of the registry was left out";
}

TEST(SnapshotCodecs, EveryRowComesBackToTheBit) {
  for_every_row([](const std::string& archive, const CalibrationPtr& tables) {
    Filled filled(archive, tables);
    ASSERT_NE(filled.cache, nullptr);
    const auto info = inspect_snapshot(filled.bytes, tables);
    ASSERT_TRUE(info.ok()) << info.status().to_string();
    const bool better = archive.find("+top") != std::string::npos;
    EXPECT_EQ(info->version, better ? 3u : tables ? 2u : 1u);
    EXPECT_EQ(info->calibration, tables ? tables->id() : 0u);
    EXPECT_EQ((*info)[Tier::archive].tokens, 48u);
    EXPECT_NE(std::find(info->codecs.begin(), info->codecs.end(), archive + " x16"), info->codecs.end());
    auto reader = cache_of(archive, tables);
    const auto copy = reader->unfreeze(filled.bytes);
    ASSERT_TRUE(copy.ok()) << copy.status().to_string();
    EXPECT_EQ(frozen(*reader, *copy), filled.bytes);
    std::vector<float> outs[2];
    std::mt19937 rng[2] = {std::mt19937(3), std::mt19937(3)};
    attend(*filled.cache, filled.seq, rng[0], 3, outs[0]);
    attend(*reader, *copy, rng[1], 3, outs[1]);
    EXPECT_TRUE(same_bits(outs[0], outs[1]));
  });
}

TEST(SnapshotCodecs, AnyFlippedBitOrTruncationIsDataLoss) {
  for_every_row([](const std::string& archive, const CalibrationPtr& tables) {
    Filled filled(archive, tables);
    Bytes bytes = filled.bytes;
    for (size_t bit = 0; bit < bytes.size() * 8; bit += bit < 2048 ? 1 : 13) {
      bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      ASSERT_EQ(filled.cache->unfreeze(bytes).status().code(), StatusCode::data_loss) << "bit " << bit;
      bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    }
    for (size_t n = 0; n < bytes.size(); n += 17) {
      ASSERT_EQ(filled.cache->unfreeze(std::span(bytes).first(n)).status().code(), StatusCode::data_loss) << n;
    }
  });
}

// With right checksums of file and block the codec's own checks must hold: refused, or a sequence whose attention is finite.
TEST(SnapshotCodecs, ResealedDamageIsRefusedOrStaysFinite) {
  uint32_t loaded = 0, calibrated = 0;
  for_every_row([&](const std::string& archive, const CalibrationPtr& tables) {
    Filled filled(archive, tables);
    const auto picture = read_body(filled.bytes, read_header(filled.bytes).value(), tables);
    ASSERT_TRUE(picture.ok()) << picture.status().to_string();
    std::mt19937 rng(9);
    for (int round = 0; round < 60; ++round) {
      const SnapshotBlock& block = picture->blocks[rng() % picture->blocks.size()];
      Bytes bytes = filled.bytes;
      // klt at half a bit of 32 channels has no whole word for its keys: they are the mean.
      const auto side = rng() % 2 && !block.keys.empty() ? block.keys : block.values;
      const size_t at = static_cast<size_t>(side.data() - filled.bytes.data());
      for (int i = 0; i < 6; ++i) bytes[at + rng() % side.size()] = static_cast<std::byte>(rng());
      // A block without positions and statistics of its own: its header, with the checksum in it, lies right before its keys.
      const size_t keys_at = static_cast<size_t>(block.keys.data() - filled.bytes.data());
      const size_t values_at = static_cast<size_t>(block.values.data() - filled.bytes.data());
      const std::span<const std::byte> all(bytes);
      const uint64_t parts[2] = {checksum(all.subspan(keys_at, block.keys.size())),
                                 checksum(all.subspan(values_at, block.values.size()))};
      put(bytes, keys_at - format::kBlockBytes + 24, checksum(std::as_bytes(std::span(parts))), 8);
      reseal(bytes);
      const auto result = filled.cache->unfreeze(bytes);
      if (!result.ok()) {
        ASSERT_EQ(result.status().code(), StatusCode::data_loss) << result.status().to_string();
        continue;
      }
      ++loaded;
      calibrated += tables != nullptr;
      std::vector<float> out;
      attend(*filled.cache, *result, rng, 2, out);
      for (const float x : out) ASSERT_TRUE(std::isfinite(x)) << archive;
      ASSERT_TRUE(filled.cache->remove(*result).ok());
    }
  });
  EXPECT_GT(loaded, 100u) << "most bytes are codes: those must load";
  EXPECT_GT(calibrated, 30u);
}

TEST(SnapshotCodecs, ACodecWithTablesIsReadWithItsOwnTablesOnly) {
  uint32_t met = 0;
  for_every_row([&](const std::string& archive, const CalibrationPtr& tables) {
    if (!tables) return;
    ++met;
    Filled filled(archive, tables);
    auto without = cache_of("rot2", nullptr);
    EXPECT_EQ(without->unfreeze(filled.bytes).status().code(), StatusCode::failed_precondition);
    EXPECT_TRUE(without->sequences().empty());
    auto other = std::make_shared<calib::Calibration>();  // the same tables under another id
    other->model = tables->model, other->block = tables->block, other->sinks = tables->sinks,
    other->distance = tables->distance + 1;
    other->ropes = tables->ropes, other->klt = tables->klt, other->kvquant = tables->kvquant, other->squat = tables->squat;
    other->oscar = tables->oscar;
    ASSERT_TRUE(other->finish().ok());
    auto wrong = cache_of(archive, other);
    const Status status = wrong->unfreeze(filled.bytes).status();
    EXPECT_EQ(status.code(), StatusCode::failed_precondition) << status.to_string();
    EXPECT_NE(status.message().find(tables->id_text()), std::string::npos) << status.message();
    EXPECT_TRUE(wrong->sequences().empty());
  });
  EXPECT_GE(met, 4u);
}

}  // namespace
}  // namespace tierkv::snapshot
