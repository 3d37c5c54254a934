// Every preset, value by value: a preset that changes changes what users get.
#include "config/presets.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/file.h"

namespace tierkv {
namespace {

struct Pinned {
  const char* name;
  LayerConfig tiers;
  uint32_t warm_block, archive_block;
  double deep_ratio = 0.0;
};

const Pinned kPinned[] = {
    {"fp16", {64, kAll, "fp16", "fp16", 0, 0}, 64, 128},
    {"int8", {64, kAll, "int8", "int8", 4, 0}, 64, 128},
    {"kivi4", {128, kAll, "kivi4-g64", "kivi4-g64", 4, 0}, 128, 128},
    {"kivi2", {128, 0, "kivi4-g64", "kivi2-g64", 4, 0}, 128, 128},
    {"k4v2", {128, 0, "kivi4-g64", "kivi4-g64/kivi2-g64", 4, 0}, 128, 128},
    {"k4v3", {128, 0, "kivi4-g64", "kivi4-g64/kivi3-g64", 4, 0}, 128, 128},
    {"balanced", {64, 448, "even4", "auto", 4, 0}, 64, 128},
    {"quality", {128, 896, "even4", "auto3", 8, 0}, 64, 128},
    {"compact", {32, 128, "even4", "auto", 4, 0}, 64, 128},
    {"deep", {64, kAll, "rot4", "rot4", 4, 0}, 64, 128, 32.0},
    {"adr004", {1024, 2048, "kivi4-g128", "kivi2-g128", 4, 0}, 128, 128},
};

TEST(Presets, ArePinnedValueByValue) {
  ASSERT_EQ(preset_names().size(), std::size(kPinned));
  for (const Pinned& p : kPinned) {
    CacheConfig c;
    c.eviction.policy = "h2o", c.eviction.protect_recent = 1;
    c.deep.quality = 0.5;
    ASSERT_TRUE(apply_preset(p.name, c).ok()) << p.name;
    EXPECT_EQ(c.tiers, p.tiers) << p.name;
    EXPECT_EQ(c.warm_block, p.warm_block) << p.name;
    EXPECT_EQ(c.archive_block, p.archive_block) << p.name;
    EXPECT_EQ(c.eviction, EvictionConfig()) << p.name;
    EXPECT_EQ(c.deep, (DeepConfig{p.deep_ratio, 0.0})) << p.name;
  }
}

TEST(Presets, BalancedIsTheDefault) {
  CacheConfig c;
  ASSERT_TRUE(apply_preset("balanced", c).ok());
  EXPECT_EQ(c, CacheConfig());
}

TEST(Presets, LeaveTheModelTheLimitsAndTheWindows) {
  CacheConfig c;
  c.model = "m", c.num_layers = 5, c.num_heads = 4, c.num_kv_heads = 2, c.head_dim = 96, c.hot_type = "bf16";
  c.max_seq_len = 77, c.byte_budget = 123, c.window_slack = 9, c.quality_target = 0.5, c.threads = 3;
  c.tiers.window = 512;
  c.overrides = {{0, 1, 5u, {}, {}, 0u, {}, {}}, {2, 2, 6u, {}, {}, {}, {}, {}}};
  CacheConfig expected = c;
  ASSERT_TRUE(apply_preset("fp16", c).ok());
  expected.tiers = {64, kAll, "fp16", "fp16", 0, 512};
  expected.overrides = {{0, 1, {}, {}, {}, 0u, {}, {}}};  // the window stays, the rest is the preset's
  EXPECT_EQ(c, expected);
}

TEST(Presets, AreValidForEveryHeadDim) {
  for (uint32_t head_dim = 32; head_dim <= 256; head_dim += 16) {
    for (const std::string& name : preset_names()) {
      CacheConfig c;
      c.num_layers = 2, c.num_kv_heads = 1, c.head_dim = head_dim;
      ASSERT_TRUE(apply_preset(name, c).ok());
      EXPECT_TRUE(validate(c).ok()) << name << " at head_dim " << head_dim << ": " << validate(c).to_string();
    }
  }
}

TEST(Presets, UnknownNamesAreRefusedWithAGuess) {
  CacheConfig c;
  const Status status = apply_preset("balence", c);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("did you mean 'balanced'?"), std::string::npos) << status.message();
  for (const std::string& name : preset_names()) EXPECT_NE(status.message().find(name), std::string::npos);
  EXPECT_EQ(c, CacheConfig());
}

TEST(Presets, StandInTheDocument) {
#ifdef TIERKV_SOURCE_DIR
  const std::string document = read_text_file(std::string(TIERKV_SOURCE_DIR) + "/docs/use/configuration.md", 1 << 20).value();
  const auto length = [](uint32_t n) { return n == kAll ? std::string("all") : std::to_string(n); };
  for (const config::Preset& p : config::presets()) {
    const std::string row = "| `" + std::string(p.name) + "` | " + length(p.hot) + " | " + length(p.warm) + " | `" + p.warm_codec +
                            "` | `" + p.archive_codec + "` | " + std::to_string(p.sinks) + " | " + std::to_string(p.warm_block) +
                            " | " + std::to_string(p.archive_block) + " | " + p.summary + " |\n";
    EXPECT_NE(document.find(row), std::string::npos) << "add to the document:\n" << row;
  }
#else
  GTEST_SKIP() << "TIERKV_SOURCE_DIR is not defined";
#endif
}

}  // namespace
}  // namespace tierkv
