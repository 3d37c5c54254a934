#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/folder_testing.h"
#include "llama/shipped_calibration.h"
#include "tierkv/llama.h"

namespace tierkv::llama {
namespace {

// A cache folder of its own for each test.
class FindCalibration : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(setenv("TIERKV_CACHE", folder_.path().c_str(), 1), 0); }
  void TearDown() override { unsetenv("TIERKV_CACHE"); }

  void keep(const std::string& path, std::span<const std::byte> bytes) const {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    FILE* file = std::fopen(path.c_str(), "wb");
    ASSERT_NE(file, nullptr);
    EXPECT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), file), bytes.size());
    std::fclose(file);
  }

  TestFolder folder_;
};

// The model that a calibration was made for, as far as looking for it goes.
ModelShape model_of(const CalibrationInfo& info) {
  ModelShape shape;
  shape.name = info.model;
  shape.fingerprint = info.fingerprint;
  shape.layers = info.num_layers;
  shape.heads = info.num_heads;
  shape.kv_heads = info.num_kv_heads;
  shape.head_dim = info.head_dim;
  return shape;
}

TEST_F(FindCalibration, TheLibraryHasTheDefaultModels) {
  ASSERT_FALSE(shipped_files().empty());
  const auto all = shipped_calibrations();
  for (const CalibrationPtr& shipped : all.value()) {
    const CalibrationInfo info = describe(*shipped);
    EXPECT_EQ(find_calibration(model_of(info), CacheConfig{}).value(), shipped);
    const FoundCalibration found = find_calibration(std::stoull(info.id, nullptr, 16)).value();
    EXPECT_EQ(found.calibration, shipped);
    EXPECT_EQ(found.where, "it ships with tierkv");
  }
}

TEST_F(FindCalibration, AnotherModelGetsNone) {
  ModelShape other = model_of(describe(*shipped_calibrations().value()[0]));
  other.fingerprint ^= 1;
  EXPECT_EQ(find_calibration(other, CacheConfig{}).value(), nullptr);
  EXPECT_EQ(find_calibration(uint64_t{12345}).value().calibration, nullptr);
}

TEST_F(FindCalibration, WhatWasMadeHereGoesBeforeWhatShipsAndWhatIsNamedBeforeBoth) {
  const CalibrationPtr shipped = shipped_calibrations().value()[0];
  const ModelShape shape = model_of(describe(*shipped));
  keep(calibration_path(shape), shipped_files()[0]);
  const CalibrationPtr made = find_calibration(shape, CacheConfig{}).value();
  ASSERT_NE(made, nullptr);
  EXPECT_NE(made, shipped);
  CacheConfig named;
  named.calibration = folder_.path() + "/nowhere.tkc";
  EXPECT_EQ(find_calibration(shape, named).status().code(), StatusCode::not_found);
}

TEST_F(FindCalibration, ByItsIdAFileIsFoundUnderAnyNameAndADamagedOneIsPassedOver) {
  const std::filesystem::path golden = std::filesystem::path(TIERKV_SOURCE_DIR) / "tests" / "golden";
  std::filesystem::path file;
  for (const auto& entry : std::filesystem::directory_iterator(golden)) {
    if (entry.path().extension() == ".tkc") file = entry.path();
  }
  ASSERT_FALSE(file.empty());
  const uint64_t id = std::stoull(describe(*load_calibration(file.string()).value()).id, nullptr, 16);
  const std::string own = cache_folder() + "/calibration/any name.tkc";
  keep(cache_folder() + "/calibration/damaged.tkc", shipped_files()[0].first(1000));
  EXPECT_EQ(find_calibration(id).value().calibration, nullptr);
  std::filesystem::copy_file(file, own);
  const FoundCalibration found = find_calibration(id).value();
  ASSERT_NE(found.calibration, nullptr);
  EXPECT_EQ(found.where, own);
}

}  // namespace
}  // namespace tierkv::llama
