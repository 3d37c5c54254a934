// Snapshots that earlier versions wrote load for ever, attend as they did, and are written back byte for byte.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "attention_tolerance.h"
#include "base/file.h"
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
    return AdaptiveKVCache::create(config).value();
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
  const auto info = inspect_snapshot(std::span<const std::byte>(bytes));
  ASSERT_TRUE(info.ok()) << info.status().to_string();
  EXPECT_EQ(info->codecs, expected["codecs"].get<std::vector<std::string>>());
  const auto reader = cache();
  const auto seq = reader->unfreeze(bytes);
  ASSERT_TRUE(seq.ok()) << seq.status().to_string();
  EXPECT_EQ(reader->freeze(*seq).value(), bytes);
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

// A golden file that is lost would be a test that silently checks less.
TEST(GoldenFiles, AreAllThere) {
  const auto there = files();
  for (const golden::Case& c : golden::cases()) EXPECT_NE(std::find(there.begin(), there.end(), c.name), there.end()) << c.name;
}

}  // namespace
}  // namespace tierkv
