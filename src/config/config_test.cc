// Configuration from text: what is accepted, and that all forms mean the same.
#include "tierkv/config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <limits>

#include "base/file.h"
#include "base/folder_testing.h"
#include "config/schema.h"
#include "config/testing.h"

namespace tierkv {
namespace {

using namespace config::testing;

const char* kWholeToml = R"(# every key
model = "smol"
num_layers = 4
num_heads = 9
num_kv_heads = 3
head_dim = 64
hot = 96
warm = "all"
warm_codec = "kivi4"
archive_codec = "kivi3/kivi2"
sinks = 6
window = 300
hot_type = "bf16"
warm_block = 32
archive_block = 64
skip = "top_p:0.9"
max_seq_len = 5000
byte_budget = "2GiB"
cold = "/var/tmp"
cold_codec = "fp16"
cold_budget = "1GiB"
promote = 6
window_slack = 16
calibrate = "smol.tkc"
calibration = "smol.tkc"
quality_target = 0.9
threads = 3

[eviction]
policy = "snapkv"
protect_recent = 16
batch = 8
observation = 24
pool = 5
window = 1000
pyramid_beta = 10

[deep]
ratio = 32

[[layer]]
layers = "0-1"
hot = "all"
warm = 128
warm_codec = "fp16"
archive_codec = "kivi2-g32"
sinks = 0
window = 0

[[layer]]
layers = 3
window = 64
)";

CacheConfig whole() {
  CacheConfig c;
  c.model = "smol";
  c.num_layers = 4, c.num_heads = 9, c.num_kv_heads = 3, c.head_dim = 64;
  c.tiers = {96, kAll, "kivi4", "kivi3/kivi2", 6, 300};
  c.hot_type = "bf16";
  c.skip = "top_p:0.9";
  c.warm_block = 32, c.archive_block = 64, c.max_seq_len = 5000, c.byte_budget = 2ull << 30, c.window_slack = 16;
  c.calibrate = c.calibration = "smol.tkc";
  c.quality_target = 0.9, c.threads = 3;
  c.eviction = {"snapkv", 16, 8, 24, 5, 1000, 10.0};
  c.deep.ratio = 32.0;
  c.cold = {"/var/tmp", "fp16", 1ull << 30, 6, "off"};
  LayerOverride first;
  first.first = 0, first.last = 1;
  first.hot = kAll, first.warm = 128, first.warm_codec = "fp16", first.archive_codec = "kivi2-g32", first.sinks = 0,
  first.window = 0;
  LayerOverride last;
  last.first = last.last = 3, last.window = 64;
  c.overrides = {first, last};
  return c;
}

TEST(ConfigToml, SetsEveryKey) {
  CacheConfig c;
  const Status status = apply_toml(kWholeToml, c, "my.toml");
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(c, whole());
  EXPECT_TRUE(validate(c).ok()) << validate(c).to_string();
  for (const auto& field : config::config_fields()) {  // so that a new key must be added above
    if (field.path() == "deep.quality") continue;      // excludes deep.ratio
    if (field.path() == "spill") continue;             // excludes eviction.policy
    EXPECT_NE(*field.get(c), *field.get(CacheConfig())) << field.path() << " is not in the example, or has its default there";
  }
}

TEST(ConfigJson, ToJsonAndBackIsTheSameFromAnyBase) {
  CacheConfig base = model();
  ASSERT_TRUE(apply_inline("quality,evict=h2o,max_seq_len=99", base).ok());
  base.overrides.push_back({0, 1, 5u, {}, {}, {}, {}, {}});
  for (const CacheConfig& c : {whole(), CacheConfig(), model()}) {
    CacheConfig back = base;
    const Status status = apply_json(to_json(c), back);
    ASSERT_TRUE(status.ok()) << status.to_string() << "\n" << to_json(c);
    EXPECT_EQ(back, c) << to_json(c);
  }
}

TEST(ConfigJson, SameKeysAsToml) {
  CacheConfig c;
  const Status status = apply_json(R"({"preset": "kivi2", "hot": 7, "byte_budget": "1.5GB", "quality_target": 1,
    "eviction": {"policy": "tova"}, "layer": [{"layers": 2, "warm": "all"}, {"layers": "3-5", "hot": 1}]})",
                                   c);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(c.tiers.hot, 7u);
  EXPECT_EQ(c.tiers.archive_codec, "kivi2-g64");
  EXPECT_EQ(c.byte_budget, 1500000000u);
  EXPECT_EQ(c.quality_target, 1.0);
  EXPECT_EQ(c.eviction.policy, "tova");
  ASSERT_EQ(c.overrides.size(), 2u);
  EXPECT_EQ(c.overrides[1].last, 5u);
}

TEST(Config, PresetIsAppliedFirstWhereverItStands) {
  CacheConfig c;
  ASSERT_TRUE(apply_toml("hot = 7\npreset = \"quality\"\n", c).ok());
  EXPECT_EQ(c.tiers.hot, 7u);
  EXPECT_EQ(c.tiers.warm, 896u);
}

TEST(ConfigToml, StringsAndCommentsMayHoldAnyCharacterAndNothingElseMay) {
  const std::pair<const char*, const char*> good[] = {
      {"model = \"caf\xC3\xA9\" # caf\xC3\xA9", "caf\xC3\xA9"}, {"model = 'it\xC3\xA9' # '\"", "it\xC3\xA9"},
      {"model = \"\\\"\xC3\xA9\\\\\" # \"", "\"\xC3\xA9\\"},    {"model = \"\"\"a\\\n   \xC3\xA9\"\"\"\"\"", "a\xC3\xA9\"\""},
      {"model = \'\'\'\xC3\xA9\'\'\'\'", "\xC3\xA9'"},          {"\xEF\xBB\xBFmodel = \"bom\"", "bom"},
  };
  for (const auto& [text, model] : good) {
    CacheConfig c;
    const Status status = apply_toml(text, c);
    EXPECT_TRUE(status.ok()) << text << "\n" << status.to_string();
    EXPECT_EQ(c.model, model);
  }
  for (const char* bad : {"caf\xC3\xA9 = 1",
                          "hot =\xC2\xA0"
                          "1",
                          "hot = 1 \xC3\xA9", "model = \"a\nb\" \xC3\xA9", "model = \"\"\"\\\xC3\xA9\"\"\""})
    EXPECT_STARTS(toml_refusal(bad), "my.toml:1: not TOML: ");
  EXPECT_STARTS(toml_refusal("[[ = 29\n"), "my.toml");
}

TEST(Config, OlderSinsOfTheBaseAreNotTheTexts) {
  CacheConfig c;
  c.archive_block = 100;
  EXPECT_TRUE(apply_inline("hot=3", c).ok());
  EXPECT_FALSE(validate(c).ok());
}

// --- the inline form and specs

TEST(ConfigInline, SetsByShortAndFullNames) {
  CacheConfig c;
  const Status status = apply_inline(
      "hot=64, warm=448 ,archive=kivi2,sinks=4,window=9,evict=h2o,budget=1.5GiB,max_seq_len=100,"
      "hot_type=bf16,warm_block=32,archive_block=96,threads=2,eviction.pool=3,warm_codec=kivi4,"
      "quality_target=0.5,protect_recent=7,evict_window=11",
      c);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(c.tiers, (LayerConfig{64, 448, "kivi4", "kivi2", 4, 9}));
  EXPECT_EQ(c.eviction.policy, "h2o");
  EXPECT_EQ(c.eviction.pool, 3u);
  EXPECT_EQ(c.eviction.protect_recent, 7u);
  EXPECT_EQ(c.eviction.window, 11u);
  EXPECT_EQ(c.byte_budget, 1610612736u);
  EXPECT_EQ(c.warm_block, 32u);
  EXPECT_EQ(c.archive_block, 96u);
  EXPECT_EQ(c.quality_target, 0.5);
}

TEST(ConfigInline, PresetAloneAndWithChanges) {
  CacheConfig a, b;
  ASSERT_TRUE(apply_inline("quality", a).ok());
  ASSERT_TRUE(apply_inline("quality,hot=all", b).ok());
  EXPECT_EQ(b.tiers.hot, kAll);
  a.tiers.hot = kAll;
  EXPECT_EQ(a, b);
}

TEST(ConfigInline, RefusesWhatItCannotRead) {
  EXPECT_HAS(inline_refusal(""), "empty setting");
  EXPECT_HAS(inline_refusal("hot=1,"), "empty setting");
  EXPECT_HAS(inline_refusal(",hot=1"), "empty setting");
  EXPECT_HAS(inline_refusal("hot=1,balanced"), "'balanced' has no value");
  EXPECT_HAS(inline_refusal("=1"), "unknown key ''");
  EXPECT_HAS(inline_refusal("balancd"), "did you mean 'balanced'?");
}

TEST(ConfigSpec, TakesPresetsFilesAndInline) {
  const TestFolder folder;
  const std::string& name = folder.path();
  const std::string toml = name + "/a=1.toml", json = name + "/a.json";
  ASSERT_TRUE(write_file_atomic(toml, "hot = 11\n").ok());
  ASSERT_TRUE(write_file_atomic(json, "{\"hot\": 12,\n \"x\": 1}").ok());
  CacheConfig c;
  EXPECT_TRUE(apply_spec("kivi4", c).ok());
  EXPECT_EQ(c.tiers.warm_codec, "kivi4-g64");
  EXPECT_TRUE(apply_spec("balanced,hot=9", c).ok());
  EXPECT_EQ(c.tiers.hot, 9u);
  EXPECT_TRUE(apply_spec(" warm=all ", c).ok());
  EXPECT_EQ(c.tiers.warm, kAll);
  EXPECT_TRUE(apply_spec(toml, c).ok());
  EXPECT_EQ(c.tiers.hot, 11u);
  EXPECT_TRUE(apply_spec("model=a.json", c).ok());
  EXPECT_EQ(c.model, "a.json");
  EXPECT_STARTS(apply_spec(json, c).message(), json + ":2: unknown key 'x'");
  EXPECT_EQ(apply_spec(name + "/none.toml", c).code(), StatusCode::not_found);
  EXPECT_HAS(apply_spec("balansed", c).message(), "did you mean 'balanced'?");
  EXPECT_HAS(apply_spec("", c).message(), "is no preset");
  EXPECT_HAS(apply_file(name, c).message(), "must end in .toml or .json");
}

// --- layers

TEST(Config, LaterOverridesWinAndTheRestIsInherited) {
  CacheConfig c;
  ASSERT_TRUE(
      apply_toml("[[layer]]\nlayers = \"0-3\"\nhot = 5\nsinks = 1\n[[layer]]\nlayers = 2\nhot = 6\narchive_codec = \"kivi2\"", c)
          .ok());
  EXPECT_EQ(c.layer(0), (LayerConfig{5, 448, "even4", "auto", 1, 0}));
  EXPECT_EQ(c.layer(2), (LayerConfig{6, 448, "even4", "kivi2", 1, 0}));
  EXPECT_EQ(c.layer(4), c.tiers);
}

TEST(Config, ALayerListReplacesTheOldOne) {
  CacheConfig c = whole();
  ASSERT_TRUE(apply_json(R"({"layer": []})", c).ok());
  EXPECT_TRUE(c.overrides.empty());
}

// --- sizes

TEST(ConfigBytes, UnitsAreExact) {
  const std::pair<const char*, uint64_t> good[] = {{"0", 0},
                                                   {"123", 123},
                                                   {"7B", 7},
                                                   {"2GiB", 2147483648},
                                                   {"512MiB", 536870912},
                                                   {"1.5GB", 1500000000},
                                                   {"1.5 GiB", 1610612736},
                                                   {"0.001kb", 1},
                                                   {"1tib", 1099511627776},
                                                   {"2TB", 2000000000000},
                                                   {"1.0B", 1},
                                                   {"0.0009765625MiB", 1024},
                                                   {"3KiB", 3072}};
  for (const auto& [text, bytes] : good) {
    const auto parsed = config::parse_bytes(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(parsed.value(), bytes) << text;
  }
  for (const char* bad : {"", "GiB", "1.5B", "1.GB", ".5GB", "1.2.3GB", "-1GB", "1G", "1 GB x", "1e3", "99999999TiB",
                          "18446744073709551616", "0.1B", "0.0000000000000001TB", "1,5GB", "0.3KiB"})
    EXPECT_FALSE(config::parse_bytes(bad).ok()) << bad;
  EXPECT_HAS(inline_refusal("budget=2XB"), "with a unit such as");
}

// --- the document

TEST(ConfigDocument, HoldsEveryRowOfTheSchema) {
#ifdef TIERKV_SOURCE_DIR
  const auto document = read_text_file(std::string(TIERKV_SOURCE_DIR) + "/docs/use/configuration.md", 1 << 20);
  ASSERT_TRUE(document.ok()) << document.status().to_string();
  for (const std::string& row : config::markdown_rows())
    EXPECT_NE(document.value().find(row + "\n"), std::string::npos) << "add to the document:\n" << row;
#else
  GTEST_SKIP() << "TIERKV_SOURCE_DIR is not defined";
#endif
}

TEST(ConfigDocument, ExampleFileIsAccepted) {
#ifdef TIERKV_SOURCE_DIR
  const std::string document = read_text_file(std::string(TIERKV_SOURCE_DIR) + "/docs/use/configuration.md", 1 << 20).value();
  const size_t begin = document.find("```toml\n"), end = document.find("```\n", begin + 8);
  ASSERT_NE(end, std::string::npos);
  CacheConfig c;
  const Status status = apply_toml(document.substr(begin + 8, end - begin - 8), c, "example");
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(validate(c).ok()) << validate(c).to_string();
#else
  GTEST_SKIP() << "TIERKV_SOURCE_DIR is not defined";
#endif
}

}  // namespace
}  // namespace tierkv
