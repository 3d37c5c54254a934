#include "calib/calibration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>

#include "base/file.h"
#include "base/folder_testing.h"
#include "solve/testing.h"

namespace tierkv::calib {
namespace {

CalibrationPtr made() {
  static const CalibrationPtr calibration = solve::klt_calibration(SyntheticModel({}).statistics()).value();
  return calibration;
}

TEST(Calibration, ComesBackFromItsBytes) {
  const auto bytes = made()->serialize();
  const auto back = Calibration::parse(bytes, "test");
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ((*back)->id(), made()->id());
  EXPECT_EQ((*back)->model, made()->model);
  EXPECT_EQ((*back)->ropes, made()->ropes);
  EXPECT_EQ((*back)->serialize(), bytes);
}

TEST(Calibration, IsTheSameWhenMadeAgain) {
  EXPECT_EQ(solve::klt_calibration(SyntheticModel({}).statistics()).value()->id(), made()->id());
}

TEST(Calibration, RefusesEveryFlippedByteAndEveryCut) {
  const auto bytes = made()->serialize();
  for (size_t i = 0; i < bytes.size(); i += i < 512 ? 1 : 997) {
    auto damaged = bytes;
    damaged[i] ^= std::byte{0x10};
    EXPECT_FALSE(Calibration::parse(damaged, "test").ok()) << "byte " << i;
  }
  for (size_t size = 0; size < bytes.size(); size += size < 512 ? 1 : 1009) {
    EXPECT_FALSE(Calibration::parse(std::span(bytes).first(size), "test").ok()) << "cut to " << size;
  }
}

TEST(Calibration, KeepsTheTablesOfKvquantAndSquat) {
  const auto made = solve::kvquant_and_squat(SyntheticModel({1, 4, 2, 32, 300, 9, true}).statistics());
  ASSERT_TRUE(made.ok()) << made.status().message();
  const auto bytes = (*made)->serialize();
  const auto back = Calibration::parse(bytes, "test");
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ((*back)->id(), (*made)->id());
  EXPECT_EQ((*back)->serialize(), bytes);
  EXPECT_EQ(describe(**back).codecs, (std::vector<std::string>{"kvquant", "squat"}));
  for (size_t i = 0; i < bytes.size(); i += 499) {
    auto damaged = bytes;
    damaged[i] ^= std::byte{0x04};
    EXPECT_FALSE(Calibration::parse(damaged, "test").ok()) << "byte " << i;
  }
}

std::string written(const std::vector<std::byte>& bytes, const std::string& path) {
  EXPECT_TRUE(write_file_atomic(path, std::span<const std::byte>(bytes)).ok());
  return path;
}

TEST(Calibration, TablesOfAFileAreReadWhenAskedForAndGoAgain) {
  const TestFolder folder;
  const auto bytes = made()->serialize();
  const std::string path = written(bytes, folder.file("lazy.tkc"));
  const auto back = Calibration::load(path).value();
  EXPECT_EQ(back->id(), made()->id());
  EXPECT_EQ(back->klt, nullptr);
  EXPECT_TRUE(back->has_klt());
  EXPECT_FALSE(back->has_squat());
  EXPECT_EQ(back->squat_tables().status().code(), StatusCode::failed_precondition);
  const size_t bare = back->bytes();
  {
    const auto tables = back->klt_tables().value();
    EXPECT_EQ(back->klt_tables().value(), tables) << "read once while somebody has it";
    EXPECT_EQ(tables->heads[1].analysis, made()->klt->heads[1].analysis);
    EXPECT_GE(back->bytes(), bare + 4u * 2 * 64 * 64 * sizeof(uint16_t));
  }
  EXPECT_EQ(back->bytes(), bare);
  {
    const auto held = back->hold();
    const void* first = back->klt_tables().value().get();
    EXPECT_GT(back->bytes(), bare) << "held";
    EXPECT_EQ(back->klt_tables().value().get(), first);
  }
  EXPECT_EQ(back->bytes(), bare);
  const std::string copy = folder.file("copy.tkc");
  ASSERT_TRUE(back->save(copy).ok());
  EXPECT_EQ(read_file(copy, 1 << 30).value(), bytes);
}

TEST(Calibration, AFileThatChangedIsNoticed) {
  const TestFolder folder;
  auto bytes = made()->serialize();
  const std::string path = written(bytes, folder.file("changed.tkc"));
  const auto back = Calibration::load(path).value();
  bytes[bytes.size() / 2] ^= std::byte{1};
  written(bytes, path);
  EXPECT_EQ(back->klt_tables().status().code(), StatusCode::data_loss);
  written({bytes.begin(), bytes.begin() + 2000}, path);
  EXPECT_EQ(back->klt_tables().status().code(), StatusCode::data_loss);
  EXPECT_EQ(back->save(folder.file("copy.tkc")).code(), StatusCode::data_loss);
  std::remove(path.c_str());
  EXPECT_EQ(back->klt_tables().status().code(), StatusCode::not_found);
}

TEST(Calibration, BytesThatStayServeAsTheFile) {
  const auto bytes = made()->serialize();
  const auto back = parse_calibration(bytes, "test", /*bytes_stay=*/true).value();
  EXPECT_EQ(back->klt, nullptr);
  EXPECT_EQ(back->klt_tables().value()->heads[0].mean, made()->klt->heads[0].mean);
  EXPECT_LT(back->bytes() + 4u * 2 * 64 * 64 * sizeof(uint16_t), made()->bytes());
  EXPECT_EQ(describe(*back).codecs, describe(*made()).codecs);
  EXPECT_EQ(back->klt_choice(1.5, true, 1, 1).value().keys, made()->klt_choice(1.5, true, 1, 1).value().keys);
}

TEST(Calibration, RefusesAnotherModel) {
  ModelId other = made()->model;
  EXPECT_TRUE(made()->check_model(other).ok());
  other.fingerprint ^= 1;
  EXPECT_EQ(made()->check_model(other).code(), StatusCode::invalid_argument);
  other = made()->model;
  other.head_dim = 128;
  EXPECT_EQ(made()->check_model(other).code(), StatusCode::invalid_argument);
}

TEST(KltTables, AllocationSpendsWhatItIsGiven) {
  const KltTables& tables = *made()->klt;
  double last = std::numeric_limits<double>::infinity();
  for (const double bits : {0.5, 1.0, 1.5, 2.0, 3.0, 4.0}) {
    const auto choices = tables.allocate(bits, false);
    std::vector<KltWords> words;
    for (const KltChoice& c : choices) words.push_back(c.keys);
    uint64_t total = 0;
    double distortion = 0.0;
    for (size_t h = 0; h < words.size(); ++h) {
      total += words[h].total();
      uint32_t j = 0;
      for (int w = kKltWidths - 1; w >= 0; --w) {
        for (uint32_t k = 0; k < words[h].components(static_cast<uint32_t>(w)); ++k, ++j)
          distortion += tables.heads[h].distortion[w][j];
      }
      for (; j < tables.head_dim; ++j) distortion += tables.heads[h].variance[j];
    }
    const double most = bits * tables.head_dim * static_cast<double>(words.size()) / 32.0;
    EXPECT_LE(static_cast<double>(total), most);
    EXPECT_GE(static_cast<double>(total), most - 4.0);
    EXPECT_LT(distortion, last);
    last = distortion;
  }
}

TEST(KltTables, ValuesShareTheBudgetWhenAsked) {
  const KltTables& tables = *made()->klt;
  for (const double bits : {1.0, 2.0, 4.0}) {
    uint64_t alone = 0, joint = 0;
    for (const KltChoice& c : tables.allocate(bits, false)) {
      alone += c.keys.total();
      EXPECT_EQ(c.value_bits, 2);
    }
    for (const KltChoice& c : tables.allocate(bits, true)) {
      joint += c.keys.total() + (c.value_bits - 2u) * tables.head_dim / 32;
      EXPECT_GE(c.value_bits, 2);
      EXPECT_LE(c.value_bits, 4);
    }
    EXPECT_LE(joint, static_cast<uint64_t>(bits * tables.head_dim * static_cast<double>(tables.heads.size()) / 32.0));
    EXPECT_LE(alone, static_cast<uint64_t>(bits * tables.head_dim * static_cast<double>(tables.heads.size()) / 32.0));
  }
}

TEST(KltTables, AnalysisAndSynthesisAreInverses) {
  const KltHead& head = made()->klt->head(0, 0);
  const uint32_t d = made()->klt->head_dim;
  for (uint32_t i = 0; i < 8; ++i) {
    for (uint32_t j = 0; j < d; ++j) {
      double product = 0.0;
      for (uint32_t c = 0; c < d; ++c)
        product += static_cast<double>(f16_to_f32(head.analysis[i * d + c])) * f16_to_f32(head.synthesis[j * d + c]);
      EXPECT_NEAR(product, i == j ? 1.0 : 0.0, 0.05) << i << " " << j;
    }
  }
}

TEST(SolveKlt, RefusesStatisticsThatSayNothing) {
  SyntheticModel model({});
  Statistics s = model.statistics();
  Statistics bad = s;
  bad.pairs[1].key_block[5] = std::nan("");
  EXPECT_FALSE(solve::solve_klt(bad, nullptr).ok());
  bad = s;
  for (PairSums& p : bad.pairs) p.key_block.assign(p.key_block.size(), 0.0);
  EXPECT_FALSE(solve::solve_klt(bad, nullptr).ok());
  bad = s;
  bad.layers[0].keys.assign(bad.layers[0].keys.size(), 0x3C00);
  bad.ropes.assign(bad.ropes.size(), {});
  EXPECT_FALSE(solve::solve_klt(bad, nullptr).ok());
  bad = s;
  bad.positions.resize(100);
  EXPECT_FALSE(solve::solve_klt(bad, nullptr).ok());
}

TEST(Turner, TurnsBackAndForth) {
  SyntheticModel model({});
  const Turner turner(model.rope(), 64);
  const auto x = model.noise(3 * 64);
  std::vector<float> y(x.size());
  for (const int64_t by : {1, 127, 128, 129, 8191, 1 << 20}) {
    turner.turn(x.data(), 3, by, y.data());
    for (uint32_t p = 0; p < 32; ++p) {
      const double angle = model.rope()[p].angle * static_cast<double>(by);
      EXPECT_NEAR(y[p], x[p] * std::cos(angle) - x[p + 32] * std::sin(angle), 2e-5) << by;
    }
    turner.turn(y.data(), 3, -by, y.data());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], 1e-5);
  }
}

}  // namespace
}  // namespace tierkv::calib
