// The cold store in a cache: copies of what is archived, promotion bit for bit and back, deep archives without the archive's
// errors, and what is left when the file fails.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/folder_testing.h"
#include "cache/impl.h"
#include "cache/park_testing.h"

namespace tierkv::cache {
namespace {

// What leaves the warm tier is as it came in, so a copy in FP16 is the original and the archive is far from it.
constexpr const char* kArchive = "hot=32,warm=64,warm_codec=fp16,archive=rot2,sinks=4,cold_codec=fp16,cold=";
constexpr const char* kOriginal = "hot=32,warm=64,warm_codec=fp16,archive=fp16,sinks=4";

// The same text for every cache, whatever it is filled with.
Filled reading(const std::string& spec, uint32_t tokens) {
  static const made_up::Text text = made_up::model().text(1000, 0);
  Filled out = filled(spec, 0);
  for (uint32_t l = 0; l < made_up::kLayers; ++l) {
    const auto view = [&](const std::vector<float>& rows) {
      return RowsView::f32(rows.data(), tokens, made_up::kHeads, made_up::kDim);
    };
    EXPECT_TRUE(out.cache->append(out.seq, l, view(text.keys[l]), view(text.values[l])).ok());
  }
  return out;
}

std::vector<std::vector<float>> all_rows(const AdaptiveKVCache& cache, SeqId seq) {
  std::vector<std::vector<float>> out;
  const uint32_t length = cache.length(seq).value();
  for (uint32_t l = 0; l < made_up::kLayers; ++l) out.push_back(rows_of(cache, seq, l, 0, length));
  return out;
}

class Cold : public ::testing::Test {
 protected:
  std::string settings() const { return kArchive + folder.file("cold"); }
  // Writes over a part of the file.
  void damage(uint64_t first, uint64_t count) const {
    const int fd = ::open(folder.file("cold").c_str(), O_RDWR);
    const std::vector<char> noise(count, 'x');
    ASSERT_EQ(::pwrite(fd, noise.data(), count, static_cast<off_t>(first)), static_cast<ssize_t>(count));
    ::close(fd);
  }
  TestFolder folder;
};

TEST_F(Cold, PromotionBringsRowsBackBitForBitAndDemotionTheArchive) {
  Filled f = reading(settings(), 700);
  const Filled original = reading(kOriginal, 700);
  const auto best = all_rows(*original.cache, original.seq), archived = all_rows(*f.cache, f.seq);
  ASSERT_NE(best, archived);
  const auto plain = f.cache->freeze(f.seq).value();
  const MemoryStats before = f.cache->memory_usage(f.seq).value();
  EXPECT_EQ(before.promoted_bytes, 0u);

  PromotionReport report;
  ASSERT_TRUE(f.cache->promote(f.seq, 0, kAll, &report).ok());
  EXPECT_EQ(report.tokens, before[Tier::archive].tokens);
  EXPECT_EQ(report.without_copy, 0u);
  EXPECT_EQ(all_rows(*f.cache, f.seq), best);
  EXPECT_TRUE(f.cache->verify(f.seq).ok());
  const MemoryStats promoted = f.cache->memory_usage(f.seq).value();
  EXPECT_EQ(promoted.promoted_tokens, before[Tier::archive].tokens);
  EXPECT_EQ(promoted[Tier::archive].tokens, before[Tier::archive].tokens);
  EXPECT_EQ(promoted[Tier::archive].bytes(), before[Tier::archive].bytes() + promoted.promoted_bytes);
  ASSERT_TRUE(f.cache->promote(f.seq, 0, kAll, &report).ok());
  EXPECT_EQ(report.blocks, 0u) << "it is there already";

  ASSERT_TRUE(f.cache->demote(f.seq).ok());
  EXPECT_EQ(all_rows(*f.cache, f.seq), archived);
  EXPECT_EQ(f.cache->freeze(f.seq).value(), plain);
  const MemoryStats after = f.cache->memory_usage(f.seq).value();
  EXPECT_EQ(after.total_bytes, before.total_bytes);
  EXPECT_EQ(after.promoted_bytes, 0u);
}

TEST_F(Cold, PromotesTheRangeAloneAndAttentionReadsIt) {
  Filled f = reading(settings(), 700);
  const Filled original = reading(kOriginal, 700);
  PromotionReport report;
  ASSERT_TRUE(f.cache->promote(f.seq, 200, 1, &report).ok());
  EXPECT_EQ(report.blocks, made_up::kLayers * made_up::kHeads);
  const auto now = all_rows(*f.cache, f.seq), best = all_rows(*original.cache, original.seq);
  const size_t width = made_up::kHeads * made_up::kDim;
  const uint32_t archived = 132;  // 4 sinks, then blocks of 128: the first stays, the second is promoted
  EXPECT_NE(0, std::memcmp(&now[0][4 * width], &best[0][4 * width], width * sizeof(float)));
  for (size_t i = archived * width; i < (archived + 128) * width; ++i) ASSERT_EQ(now[0][i], best[0][i]);
  // Attention sees what get() shows.
  std::mt19937 rng(5);
  std::vector<float> out;
  attend(*f.cache, f.seq, rng, 3, out);
  for (const float x : out) ASSERT_TRUE(std::isfinite(x));
}

TEST_F(Cold, ForksShareCopiesAndWhatIsPromoted) {
  Filled f = reading(settings(), 700);
  ASSERT_TRUE(f.cache->flush().ok());
  const ColdStats one = f.cache->cold_usage();
  EXPECT_GT(one.copies, 0u);
  const SeqId early = f.cache->fork(f.seq).value();
  ASSERT_TRUE(f.cache->promote(f.seq).ok());
  const SeqId late = f.cache->fork(f.seq).value();
  EXPECT_EQ(f.cache->cold_usage().copies, one.copies);
  const auto best = all_rows(*f.cache, f.seq);
  EXPECT_EQ(all_rows(*f.cache, late), best);
  EXPECT_NE(all_rows(*f.cache, early), best);
  ASSERT_TRUE(f.cache->remove(f.seq).ok());
  EXPECT_EQ(all_rows(*f.cache, late), best);
  ASSERT_TRUE(f.cache->demote(late).ok());
  EXPECT_EQ(all_rows(*f.cache, late), all_rows(*f.cache, early));
  ASSERT_TRUE(f.cache->promote(early).ok());
  EXPECT_EQ(all_rows(*f.cache, early), best);
  ASSERT_TRUE(f.cache->remove(early).ok());
  EXPECT_EQ(f.cache->cold_usage().copies, one.copies);
  ASSERT_TRUE(f.cache->remove(late).ok());
  ASSERT_TRUE(f.cache->flush().ok());
  EXPECT_EQ(f.cache->cold_usage().copies, 0u);
  EXPECT_EQ(f.cache->memory_usage().cold_bytes, store::ColdFile::kHeaderBytes);
  EXPECT_EQ(in_use(*f.cache), 0u);
}

TEST_F(Cold, CopiesSurviveTruncationAndGoWithTheirBlocks) {
  Filled f = reading(settings(), 700);
  const auto best = [&] {
    const Filled original = reading(kOriginal, 700);
    EXPECT_TRUE(original.cache->truncate(original.seq, 300).ok());
    return all_rows(*original.cache, original.seq);
  }();
  ASSERT_TRUE(f.cache->flush().ok());
  const uint64_t copies = f.cache->cold_usage().copies;
  ASSERT_TRUE(f.cache->promote(f.seq, 250, 100).ok());
  ASSERT_TRUE(f.cache->truncate(f.seq, 300).ok());
  EXPECT_LT(f.cache->cold_usage().copies, copies);
  ASSERT_TRUE(f.cache->promote(f.seq).ok());
  EXPECT_EQ(all_rows(*f.cache, f.seq), best);
  append_text(*f.cache, f.seq, 400);
  EXPECT_TRUE(f.cache->verify(f.seq).ok());
}

TEST_F(Cold, DeepArchivesComeFromTheCopiesAndNotFromTheArchive) {
  Filled f = reading(settings(), 900);
  const Filled original = reading(kOriginal, 900), without = reading("hot=32,warm=64,warm_codec=fp16,archive=rot2,sinks=4", 900);
  DeepReport cold, best, noisy;
  const auto bytes = f.cache->freeze(f.seq, at_ratio(15.0), &cold);
  ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
  ASSERT_TRUE(original.cache->freeze(original.seq, at_ratio(15.0), &best).ok());
  ASSERT_TRUE(without.cache->freeze(without.seq, at_ratio(15.0), &noisy).ok());
  // The same rows give the same archive.
  EXPECT_EQ(cold.tokens, best.tokens);
  EXPECT_EQ(cold.bytes, best.bytes);
  EXPECT_EQ(cold.quality, best.quality);
  EXPECT_NE(cold.quality, noisy.quality);
  EXPECT_EQ(cold.note, "");
  // Parking packs the same bytes, promoted or not.
  ASSERT_TRUE(f.cache->promote(f.seq, 100, 300).ok());
  DeepReport parked;
  ASSERT_TRUE(f.cache->park(f.seq, at_ratio(15.0), &parked).ok());
  EXPECT_EQ(f.cache->freeze(f.seq).value(), *bytes);
  EXPECT_EQ(f.cache->memory_usage(f.seq)->promoted_bytes, 0u);
  EXPECT_EQ(f.cache->promote(f.seq).code(), StatusCode::failed_precondition) << "until it wakes";
  // What wakes is promoted from the first rows still, and packed again it is the same again.
  ASSERT_TRUE(f.cache->wake(f.seq).ok());
  const SeqId fork = f.cache->fork(f.seq).value();
  ASSERT_TRUE(f.cache->promote(fork).ok());
  EXPECT_EQ(all_rows(*f.cache, fork), all_rows(*original.cache, original.seq));
  EXPECT_EQ(f.cache->freeze(f.seq, at_ratio(15.0)).value(), *bytes);
  // Loaded, the rows are what the deep archive had, and are copied like others.
  const SeqId loaded = f.cache->unfreeze(*bytes).value();
  PromotionReport report;
  ASSERT_TRUE(f.cache->promote(loaded, 0, kAll, &report).ok());
  EXPECT_GT(report.blocks, 0u);
  const auto rows = all_rows(*f.cache, loaded), truth = all_rows(*original.cache, original.seq);
  const SeqId again = f.cache->unfreeze(*bytes).value();
  EXPECT_LT(difference(truth[0], rows[0]), difference(truth[0], all_rows(*f.cache, again)[0]));
}

TEST_F(Cold, SnapshotsHoldWhatAttentionReads) {
  Filled f = reading(settings(), 700);
  ASSERT_TRUE(f.cache->promote(f.seq, 0, 300).ok());
  const auto rows = all_rows(*f.cache, f.seq);
  const SeqId loaded = f.cache->unfreeze(f.cache->freeze(f.seq).value()).value();
  EXPECT_EQ(all_rows(*f.cache, loaded), rows);
  PromotionReport report;
  ASSERT_TRUE(f.cache->promote(loaded, 0, kAll, &report).ok());
  EXPECT_EQ(report.blocks, 0u) << "copies are not in a snapshot";
  EXPECT_GT(report.without_copy, 0u);
  const Filled plain = reading("hot=32,warm=64,warm_codec=fp16,archive=rot2,sinks=4", 10);
  EXPECT_TRUE(plain.cache->unfreeze(f.cache->freeze(f.seq).value()).ok()) << "a cache without a cold file loads it too";
}

TEST_F(Cold, ADamagedCopyIsRefusedOnceAndTheRestComesBack) {
  Filled f = reading(settings(), 700);
  ASSERT_TRUE(f.cache->flush().ok());
  const auto archived = all_rows(*f.cache, f.seq);
  const uint64_t bytes = in_use(*f.cache);
  damage(store::ColdFile::kHeaderBytes + 100, 8);
  PromotionReport report;
  EXPECT_EQ(f.cache->promote(f.seq, 0, kAll, &report).code(), StatusCode::data_loss);
  EXPECT_EQ(all_rows(*f.cache, f.seq), archived);
  EXPECT_EQ(in_use(*f.cache), bytes);
  EXPECT_EQ(f.cache->cold_usage().damaged, 1u);
  ASSERT_TRUE(f.cache->promote(f.seq, 0, kAll, &report).ok());
  EXPECT_EQ(report.without_copy, 1u);
  EXPECT_GT(report.blocks, 0u);
  ASSERT_TRUE(f.cache->demote(f.seq).ok());
  EXPECT_EQ(all_rows(*f.cache, f.seq), archived);
}

TEST_F(Cold, AFileThatIsCutCostsQualityOfADeepArchiveAndTheReportSaysSo) {
  Filled f = reading(settings(), 900);
  ASSERT_TRUE(f.cache->flush().ok());
  std::filesystem::resize_file(folder.file("cold"), store::ColdFile::kHeaderBytes);
  const Filled without = reading("hot=32,warm=64,warm_codec=fp16,archive=rot2,sinks=4", 900);
  DeepReport cut, noisy;
  ASSERT_TRUE(f.cache->freeze(f.seq, at_ratio(15.0), &cut).ok());
  ASSERT_TRUE(without.cache->freeze(without.seq, at_ratio(15.0), &noisy).ok());
  EXPECT_EQ(cut.bytes, noisy.bytes) << "the archive's own rows";
  EXPECT_EQ(cut.quality, noisy.quality);
  EXPECT_NE(cut.note.find("no cold copy"), std::string::npos) << cut.note;
  // New copies go on being made.
  append_text(*f.cache, f.seq, 300);
  PromotionReport report;
  ASSERT_TRUE(f.cache->promote(f.seq, 0, kAll, &report).ok());
  EXPECT_GT(report.blocks, 0u);
}

TEST_F(Cold, ABudgetRefusesPromotionAndLosesNothing) {
  const uint64_t needs = in_use(*reading(settings() + ".other", 700).cache);
  Filled f = reading(settings() + ",budget=" + std::to_string(needs + needs / 2), 700);
  const auto archived = all_rows(*f.cache, f.seq);
  EXPECT_EQ(f.cache->promote(f.seq).code(), StatusCode::resource_exhausted);
  EXPECT_EQ(all_rows(*f.cache, f.seq), archived);
  EXPECT_EQ(f.cache->memory_usage(f.seq)->promoted_bytes, 0u);
  int asked = 0;
  ASSERT_TRUE(f.cache->set_pressure_handler([&](const MemoryPressure& p) { return p.needed_bytes > 0 && ++asked < 3; }).ok());
  EXPECT_EQ(f.cache->promote(f.seq).code(), StatusCode::resource_exhausted);
  EXPECT_EQ(asked, 3);
  EXPECT_TRUE(f.cache->promote(f.seq, 140, 1).ok()) << "one block of each head has room";
}

TEST_F(Cold, RowsThatTheCodecRefusesAreKeptAs16Bits) {
  // kivi's 8-bit scales have a range; whatever is refused comes back as it was.
  Filled f = reading("hot=32,warm=64,warm_codec=fp16,archive=rot2,sinks=4,cold_codec=int8,cold=" + folder.path(), 0);
  std::vector<float> rows(size_t{400} * made_up::kHeads * made_up::kDim);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = i % 7 ? 60000.0f : 1e-7f;
  const RowsView view = RowsView::f32(rows.data(), 400, made_up::kHeads, made_up::kDim);
  for (uint32_t l = 0; l < made_up::kLayers; ++l) ASSERT_TRUE(f.cache->append(f.seq, l, view, view).ok());
  PromotionReport report;
  ASSERT_TRUE(f.cache->promote(f.seq, 0, kAll, &report).ok());
  EXPECT_GT(report.blocks, 0u);
  EXPECT_TRUE(f.cache->verify(f.seq).ok());
}

TEST_F(Cold, SaysWhatIsWrongWithItsSettings) {
  const auto refused = [&](const std::string& more) {
    auto made = AdaptiveKVCache::create(config_of("hot=32,warm=64,archive=rot2," + more), calibration());
    EXPECT_FALSE(made.ok()) << more;
    return made.ok() ? Status() : made.status();
  };
  CacheConfig calibrated = config_of("hot=32,warm=64,archive=rot2,cold=" + folder.path());
  calibrated.cold.codec = "klt2";
  EXPECT_EQ(AdaptiveKVCache::create(calibrated, calibration()).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(refused("cold=" + folder.file("no/such/folder")).code(), StatusCode::not_found);
  Filled f = reading(settings(), 10);
  EXPECT_EQ(refused("cold=" + folder.file("cold")).code(), StatusCode::failed_precondition) << "in use";
  Filled off = reading("hot=32,warm=64,archive=rot2,cold=off", 10);
  EXPECT_EQ(off.cache->promote(off.seq).code(), StatusCode::failed_precondition);
  EXPECT_TRUE(off.cache->demote(off.seq).ok());
  EXPECT_EQ(off.cache->cold_usage().file_bytes, 0u);
  EXPECT_EQ(f.cache->promote(99).code(), StatusCode::not_found);
  EXPECT_EQ(f.cache->demote(99).code(), StatusCode::not_found);
}

}  // namespace
}  // namespace tierkv::cache
