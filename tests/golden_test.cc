// Snapshots that earlier versions wrote load for ever, attend as they did, and are written back byte for byte.
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "attention_tolerance.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/folder_testing.h"
#include "calib/calibration.h"
#include "golden/golden.h"
#include "tierkv/snapshot.h"

namespace tierkv {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(TIERKV_SOURCE_DIR) / "tests" / "golden";

class Golden : public ::testing::TestWithParam<std::string> {
 protected:
  std::vector<std::byte> bytes = read_file(kFolder / (GetParam() + ".tkv"), 1 << 20).value();
  nlohmann::json expected = nlohmann::json::parse(read_text_file(kFolder / (GetParam() + ".json"), 1 << 20).value());

  std::unique_ptr<AdaptiveKVCache> cache() const {
    CacheConfig config;
    const Status status = apply_json(expected["config"].dump(), config);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return AdaptiveKVCache::create(config, tables()).value();
  }
  // Null for snapshots that need none.
  CalibrationPtr tables() const {
    if (!expected.contains("calibration")) return nullptr;
    return load_calibration(kFolder / expected["calibration"].get<std::string>()).value();
  }
};

TEST_P(Golden, LoadsAndAttendsAsItDid) {
  const auto reader = cache();
  const auto seq = reader->load(kFolder / (GetParam() + ".tkv"));
  ASSERT_TRUE(seq.ok()) << seq.status().to_string();
  EXPECT_EQ(reader->length(*seq).value(), expected["length"].get<uint32_t>());
  EXPECT_TRUE(reader->verify(*seq).ok());
  for (uint32_t h = 0; h < expected["positions"].size(); ++h) {
    EXPECT_EQ(reader->positions(*seq, 1, h).value(), expected["positions"][h].get<std::vector<uint32_t>>());
  }
  const auto want = expected["attention"].get<std::vector<float>>();
  const std::string_view isa = quant::active_isa();
  for (const std::string_view name : quant::available_isas()) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(quant::set_active_isa(name));
    const auto got = golden::attend(*reader, *seq, expected["query_seed"], expected["queries"], false);
    ASSERT_EQ(got.size(), want.size());
    // exp() may differ in its last bit between C libraries, and the kernels round in their own way; the codes do not.
    const double tolerance = name == "scalar" ? 1e-5 : testing::attention_tolerance();
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << i;
  }
  quant::set_active_isa(isa);
}

TEST_P(Golden, IsWrittenBackByteForByte) {
  const auto info = inspect_snapshot(std::span<const std::byte>(bytes), tables());
  ASSERT_TRUE(info.ok()) << info.status().to_string();
  EXPECT_EQ(info->codecs, expected["codecs"].get<std::vector<std::string>>());
  const auto reader = cache();
  const auto seq = reader->unfreeze(bytes);
  ASSERT_TRUE(seq.ok()) << seq.status().to_string();
  // A deep archive is decoded when it is loaded: then it is blocks, the same bits as when the file was made.
  if (!expected.contains("deep_tokens")) EXPECT_EQ(reader->freeze(*seq).value(), bytes);
  else EXPECT_EQ(checksum(reader->freeze(*seq).value()), expected["plain_checksum"].get<uint64_t>());
}

// A file of a version says so: v1 has no tables, v2 has, v3 may have.
TEST_P(Golden, IsOfTheVersionItsNameSays) {
  const auto info = inspect_snapshot(std::span<const std::byte>(bytes), tables());
  ASSERT_TRUE(info.ok()) << info.status().to_string();
  EXPECT_EQ("v" + std::to_string(info->version), GetParam().substr(0, 2));
  EXPECT_TRUE(info->version == 3 || (info->version == 2) == expected.contains("calibration"));
}

TEST_P(Golden, GoesOn) {
  const auto reader = cache();
  const SeqId seq = reader->unfreeze(bytes).value();
  EXPECT_TRUE(golden::append(*reader, seq, 400, 70));
  EXPECT_FALSE(golden::attend(*reader, seq, 500, 3, true).empty());
  EXPECT_EQ(reader->length(seq).value(), expected["length"].get<uint32_t>() + 70);
}

std::vector<std::string> files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".tkv") names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, ::testing::ValuesIn(files()), [](const auto& info) { return info.param; });

// --- calibrations and thresholds

TEST(GoldenCalibration, IsReadAndWrittenBackByteForByte) {
  const std::pair<const char*, std::vector<std::string>> files[] = {{"calibration_v1.tkc", {"klt", "kvquant", "squat"}},
                                                                    {"calibration_v1_deep.tkc", {"klt", "deep"}}};
  for (const auto& [name, codecs] : files) {
    SCOPED_TRACE(name);
    const std::vector<std::byte> bytes = read_file(kFolder / name, 1 << 20).value();
    const auto read = calib::Calibration::parse(bytes, name);
    ASSERT_TRUE(read.ok()) << read.status().to_string();
    EXPECT_EQ((*read)->serialize(), bytes);
    const CalibrationInfo info = describe(**read);
    EXPECT_EQ(info.model, "golden");
    EXPECT_EQ(info.codecs, codecs);
    EXPECT_EQ(info.block, 32u);
    const auto from_file = load_calibration(kFolder / name);
    ASSERT_TRUE(from_file.ok()) << from_file.status().to_string();
    EXPECT_EQ((*from_file)->id(), (*read)->id());
  }
}

TEST(GoldenThresholds, AreReadAndWrittenBackByteForByte) {
  const std::string path = kFolder / "thresholds_v1.json";
  const TestFolder folder;
  const std::string copy = folder.file("thresholds.json");
  std::filesystem::copy_file(path, copy, std::filesystem::copy_options::overwrite_existing);
  for (const char* model : {"golden", "other:model"}) {
    CacheConfig config = golden::config("balanced", 64, 128, 4);
    config.model = model;
    auto cache = AdaptiveKVCache::create(config).value();
    const auto before = cache->thresholds();
    ASSERT_TRUE(cache->load_thresholds(path).ok());
    const auto loaded = cache->thresholds();
    ASSERT_EQ(loaded.size(), 2u);
    for (size_t l = 0; l < loaded.size(); ++l) EXPECT_NE(loaded[l].hot, before[l].hot) << "the file says something else";
    ASSERT_TRUE(cache->save_thresholds(copy).ok());
  }
  EXPECT_EQ(read_text_file(copy, 1 << 20).value(), read_text_file(path, 1 << 20).value());
  std::filesystem::remove(copy);
}

// A golden file that is lost would be a test that silently checks less.
TEST(GoldenFiles, AreAllThere) {
  const auto there = files();
  for (const golden::Case& c : golden::cases()) EXPECT_NE(std::find(there.begin(), there.end(), c.name), there.end()) << c.name;
}

}  // namespace
}  // namespace tierkv
