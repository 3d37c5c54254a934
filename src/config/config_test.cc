// Configuration from text: what is accepted, what is refused and how the refusal reads.
#include "tierkv/config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <limits>

#include "base/file.h"
#include "config/schema.h"

namespace tierkv {
namespace {

CacheConfig model() {
  CacheConfig c;
  c.num_layers = 4, c.num_heads = 9, c.num_kv_heads = 3, c.head_dim = 64;
  return c;
}

// The message of a refusal; also checks that nothing changed.
template <class Apply>
std::string refusal(Apply apply, const CacheConfig& base = {}) {
  CacheConfig c = base;
  const Status status = apply(c);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(c, base) << "a refused text changed the configuration";
  return status.message();
}
std::string toml_refusal(const std::string& text, const CacheConfig& base = {}) {
  return refusal([&](CacheConfig& c) { return apply_toml(text, c, "my.toml"); }, base);
}
std::string json_refusal(const std::string& text, const CacheConfig& base = {}) {
  return refusal([&](CacheConfig& c) { return apply_json(text, c, "my.json"); }, base);
}
std::string inline_refusal(const std::string& text, const CacheConfig& base = {}) {
  return refusal([&](CacheConfig& c) { return apply_inline(text, c); }, base);
}
#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << "message: " << (text)
#define EXPECT_STARTS(text, part) EXPECT_EQ((text).rfind(part, 0), 0u) << "message: " << (text)

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
max_seq_len = 5000
byte_budget = "2GiB"
window_slack = 16
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
  c.warm_block = 32, c.archive_block = 64, c.max_seq_len = 5000, c.byte_budget = 2ull << 30, c.window_slack = 16;
  c.calibration = "smol.tkc";
  c.quality_target = 0.9, c.threads = 3;
  c.eviction = {"snapkv", 16, 8, 24, 5, 1000, 10.0};
  c.deep.ratio = 32.0;
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

// --- refusals: key, allowed values, place

TEST(ConfigErrors, UnknownKeyWithLineSuggestionAndList) {
  const std::string m = toml_refusal("hot = 1\n\n# c\n\n\n\narchve = \"rot2\"\n");
  EXPECT_STARTS(m, "my.toml:7: unknown key 'archve'; did you mean 'archive_codec'? allowed keys: ");
  for (const auto& field : config::config_fields()) {
    if (!*field.section) {
      EXPECT_HAS(m, field.key);
    }
  }
  EXPECT_STARTS(json_refusal("{\n \"hot\": 1,\n \"archve\": \"rot2\"\n}"),
                "my.json:3: unknown key 'archve'; did you mean 'archive_codec'?");
  EXPECT_STARTS(inline_refusal("hto=64"), "inline: unknown key 'hto'; did you mean 'hot'?");
  EXPECT_STARTS(inline_refusal("archve=kivi2"), "inline: unknown key 'archve'; did you mean 'archive'?");
  EXPECT_STARTS(toml_refusal("[eviction]\npolicyy = \"h2o\""), "my.toml:2: unknown key 'eviction.policyy'; did you mean 'policy'?");
  EXPECT_STARTS(toml_refusal("[[layer]]\nlayers = 0\nwram = 3"), "my.toml:3: unknown key 'layer[0].wram'; did you mean 'warm'?");
  EXPECT_STARTS(toml_refusal("policy = \"h2o\""), "my.toml:1: unknown key 'policy'; did you mean 'eviction.policy'?");
  EXPECT_HAS(toml_refusal("[eviction]\nhot = 3"), "'hot' belongs at the top");
  EXPECT_HAS(toml_refusal("zzzzzzzz = 1"), "unknown key 'zzzzzzzz'; allowed keys: ");
}

TEST(ConfigErrors, WrongTypesNameTheKeyTheAllowedAndTheGiven) {
  EXPECT_EQ(toml_refusal("warm_block = \"64\""),
            "my.toml:1: 'warm_block' must be a whole number in 16..256, a multiple of 16, not '64' (a string)");
  EXPECT_EQ(json_refusal("{\"hot\": 64.5}"), "my.json:1: 'hot' must be a whole number in 0..1073741824 or \"all\", not 64.5");
  EXPECT_HAS(json_refusal("{\"hot\": 64.0}"), "not 64.0");
  EXPECT_HAS(toml_refusal("hot = 64.0"), "not 64.0");
  EXPECT_HAS(toml_refusal("hot = true"), "not true");
  EXPECT_HAS(toml_refusal("hot = \"al\""), "not 'al' (a string)");
  EXPECT_HAS(toml_refusal("hot = 1979-05-27"), "not a date or time");
  EXPECT_HAS(toml_refusal("hot = [1]"), "not an array");
  EXPECT_HAS(json_refusal("{\"hot\": null}"), "not null");
  EXPECT_HAS(toml_refusal("model = 3"), "'model' must be a string");
  EXPECT_HAS(toml_refusal("quality_target = \"0.9\""), "above 0 up to 1");
  EXPECT_HAS(toml_refusal("eviction = \"h2o\""), "'eviction' must be a table");
  EXPECT_HAS(toml_refusal("[layer]\nlayers = 1"), "'layer' must be an array of tables");
  EXPECT_HAS(json_refusal("{\"layer\": [3]}"), "'layer[0]' must be a table");
  EXPECT_HAS(toml_refusal("preset = 3"), "'preset' must be one of fp16,");
  EXPECT_HAS(json_refusal("[1]"), "a configuration is a JSON object, not an array");
}

TEST(ConfigErrors, IntegersRefuseFractionsNegativesAndOverflow) {
  for (const char* bad : {"-1", "-9223372036854775808", "4294967295", "9223372036854775807", "1.5", "1e3"}) {
    EXPECT_HAS(toml_refusal(std::string("hot = ") + bad), "my.toml:1: 'hot' must be a whole number");
    EXPECT_HAS(json_refusal(std::string("{\"hot\": ") + bad + "}"), "my.json:1: 'hot' must be a whole number");
    EXPECT_HAS(inline_refusal(std::string("hot=") + bad), "inline: 'hot' must be a whole number");
  }
  EXPECT_HAS(json_refusal("{\"hot\": 18446744073709551616}"), "'hot' must be a whole number");
  EXPECT_HAS(json_refusal("{\"byte_budget\": 18446744073709551615}"), "'byte_budget' must be");
  EXPECT_HAS(inline_refusal("hot=18446744073709551616"), "'hot' must be a whole number");
  EXPECT_HAS(inline_refusal("hot=+3"), "'hot' must be a whole number");
  EXPECT_HAS(inline_refusal("hot="), "'hot' must be a whole number");
  EXPECT_STARTS(toml_refusal("\nhot = 9223372036854775808"), "my.toml:2: ");  // past TOML's own integers
}

TEST(ConfigErrors, RangesAreHeld) {
  for (const char* bad : {"warm_block=24",
                          "warm_block=0",
                          "warm_block=272",
                          "archive_block=8",
                          "head_dim=33",
                          "head_dim=16",
                          "head_dim=272",
                          "threads=0",
                          "threads=1025",
                          "pool=4",
                          "pool=0",
                          "pool=257",
                          "observation=0",
                          "pyramid_beta=0.5",
                          "quality_target=0",
                          "quality_target=1.01",
                          "quality_target=nan",
                          "quality_target=inf",
                          "evict_batch=0",
                          "deep.ratio=1.5",
                          "deep_ratio=1001",
                          "deep_ratio=nan",
                          "deep.quality=1.01",
                          "deep_quality=-0.1",
                          "sinks=257"}) {
    const std::string m = inline_refusal(bad);
    EXPECT_HAS(m, "must be");
    EXPECT_HAS(m, "not ");
  }
  EXPECT_HAS(toml_refusal("quality_target = nan"), "'quality_target' must be");
  EXPECT_HAS(toml_refusal("[eviction]\npyramid_beta = inf"), "'eviction.pyramid_beta' must be");
  EXPECT_HAS(inline_refusal("evict=h20"), "not 'h20'; did you mean 'h2o'?");
  EXPECT_HAS(inline_refusal("hot_type=f16"), "one of fp16, bf16");
  EXPECT_HAS(inline_refusal("archive=kivi99"), "'archive_codec' names no codec");
  EXPECT_HAS(inline_refusal("archive=nope"), "nope");
  EXPECT_EQ(inline_refusal("archive=\x1b[2J").find('\x1b'), std::string::npos);
  EXPECT_HAS(inline_refusal("model=" + std::string(257, 'x')), "at most 256 bytes");
  EXPECT_HAS(inline_refusal("model=a\x01"), "control characters");
  EXPECT_HAS(inline_refusal("model=\xff"), "UTF-8");
}

TEST(ConfigErrors, DeepTargetsExcludeEachOther) {
  EXPECT_STARTS(toml_refusal("hot = 3\n[deep]\nratio = 20\nquality = 0.97\n"),
                "my.toml:3: 'deep.ratio' and 'deep.quality' exclude each other");
  EXPECT_HAS(json_refusal(R"({"deep": {"ratio": 20, "quality": 0.9}})"), "exclude each other");
  EXPECT_HAS(inline_refusal("deep,deep.quality=0.97"), "set one of them to 0");
  CacheConfig c;
  ASSERT_TRUE(apply_inline("deep,deep.ratio=0,deep.quality=0.97", c).ok());
  EXPECT_EQ(c.deep, (DeepConfig{0.0, 0.97}));
  ASSERT_TRUE(apply_json(to_json(c), c).ok());
  EXPECT_EQ(c.deep, (DeepConfig{0.0, 0.97}));
  ASSERT_TRUE(apply_inline("balanced", c).ok());
  EXPECT_EQ(c.deep, DeepConfig());
}

TEST(ConfigErrors, AdaptiveIsTheWholeArchiveOrNothing) {
  CacheConfig c = model();
  EXPECT_TRUE(apply_inline("archive=adaptive", c).ok());
  EXPECT_TRUE(validate(c).ok()) << validate(c).to_string();
  EXPECT_TRUE(apply_toml("[[layer]]\nlayers = 1\narchive_codec = \"adaptive\"", c).ok());
  for (const char* bad :
       {"warm_codec=adaptive", "archive=adaptive/rot2", "archive=rot2/adaptive", "archive=adaptive2", "warm_codec=rot4/adaptive"}) {
    EXPECT_HAS(inline_refusal(bad), "adaptive chooses by the length of a sequence");
  }
  EXPECT_HAS(toml_refusal("[[layer]]\nlayers = 1\nwarm_codec = \"adaptive\""), "adaptive chooses");
}

TEST(ConfigErrors, DuplicatesAreRefused) {
  EXPECT_EQ(json_refusal("{\"hot\": 1,\n\"warm\": 2,\n\"hot\": 3}"), "my.json:3: key 'hot' is given twice; first in line 1");
  EXPECT_STARTS(toml_refusal("hot = 1\nhot = 2"), "my.toml:2: ");
  EXPECT_HAS(inline_refusal("hot=1,hot=2"), "'hot' is given twice");
  EXPECT_HAS(inline_refusal("archive=kivi2,archive_codec=kivi2"), "'archive_codec' is given twice");
  EXPECT_HAS(inline_refusal("balanced,preset=kivi2"), "'preset' is given twice");
  EXPECT_HAS(json_refusal("{\"preset\": \"fp16\", \"preset\": \"fp16\"}"), "'preset' is given twice");
  EXPECT_HAS(json_refusal("{\"eviction\": {}, \"eviction\": {}}"), "'eviction' is given twice");
  EXPECT_HAS(json_refusal("{\"layer\": [], \"layer\": []}"), "'layer' is given twice");
  EXPECT_HAS(json_refusal("{\"layer\": [{\"layers\": 0, \"hot\": 1, \"hot\": 1}]}"), "'layer[0].hot' is given twice");
}

TEST(ConfigErrors, JsonLinesAreRightAroundNumbersAndStrings) {
  EXPECT_STARTS(json_refusal("{\n\"hot\":\n-1\n,\n\"warm\":1}"), "my.json:2: 'hot'");  // the key's line
  EXPECT_STARTS(json_refusal("{\n\"hot\": 1\n,\n\n\"oops\": 1}"), "my.json:5: unknown");
  EXPECT_STARTS(json_refusal("{\r\n\"hot\": 1,\r\n\"oops\"\r\n: 1}"), "my.json:3: unknown");
  EXPECT_STARTS(json_refusal("{\n\"layer\": [\n{\"layers\": 0, \"hot\": 1},\n{\"hot\": 1}]}"),
                "my.json:4: 'layer[1]' needs 'layers'");
}

TEST(ConfigErrors, SyntaxErrorsHaveLines) {
  EXPECT_STARTS(json_refusal("{\n\"hot\": 1,\n}"), "my.json:3: not JSON: ");
  EXPECT_STARTS(json_refusal("{\n\"hot\" 1}"), "my.json:2: not JSON: ");
  EXPECT_STARTS(json_refusal("{\"hot\": 1}\n\nx"), "my.json:3: not JSON: ");
  EXPECT_STARTS(json_refusal(""), "my.json:1: not JSON: ");
  EXPECT_STARTS(toml_refusal("hot = 1\nwarm = = 2\n"), "my.toml:2: not TOML: ");
  EXPECT_STARTS(toml_refusal("hot = 1\n[eviction\n"), "my.toml:2: not TOML: ");
  EXPECT_STARTS(toml_refusal("model = \"\xff\""), "my.toml:1: not TOML: ");
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

TEST(ConfigErrors, ImpossibleCombinationsNameTheLineOfAKeyInvolved) {
  EXPECT_EQ(toml_refusal("hot = 3\nwarm_block = 96\n"),
            "my.toml:2: 'archive_block' must be a multiple of 'warm_block' (96), not 128");
  EXPECT_STARTS(toml_refusal("num_kv_heads = 3\nnum_heads = 8"),
                "my.toml:2: 'num_heads' must be a multiple of 'num_kv_heads' (3), not 8");
  EXPECT_STARTS(json_refusal("{\n\"max_seq_len\": 4}"), "my.json:2: 'sinks' (4) must be below 'max_seq_len' (4)");
  EXPECT_STARTS(toml_refusal("num_layers = 2\n[[layer]]\nlayers = \"1-2\"\nhot = 1"),
                "my.toml:3: 'layer[0].layers' names layer 2; the model has 2");
  EXPECT_STARTS(toml_refusal("[[layer]]\nlayers = 1\n"), "my.toml:2: 'layer[0].layers': layers 1 override nothing");
  EXPECT_STARTS(toml_refusal("[[layer]]\nhot = 1\n"), "my.toml:1: 'layer[0]' needs 'layers'");
  EXPECT_HAS(toml_refusal("[[layer]]\nlayers = \"3-1\"\nhot = 1"), "must be a layer such as 3 or a range");
  EXPECT_HAS(inline_refusal("byte_budget=1000", model()),
             "at least 196608 bytes are needed");  // 4 layers, 3 heads, 64 rows of 64, K and V
  CacheConfig short_limit;
  short_limit.max_seq_len = 6;
  EXPECT_HAS(toml_refusal("preset = \"quality\"", short_limit), "my.toml:1: 'sinks' (8) must be below 'max_seq_len' (6)");
}

TEST(Config, OlderSinsOfTheBaseAreNotTheTexts) {
  CacheConfig c;
  c.archive_block = 100;
  EXPECT_TRUE(apply_inline("hot=3", c).ok());
  EXPECT_FALSE(validate(c).ok());
}

TEST(ConfigErrors, HostileTextIsBounded) {
  EXPECT_HAS(json_refusal(std::string(100000, '[')), "nested more than");
  std::string deep;
  for (int i = 0; i < 20000; ++i) deep += "{\"a\":";
  EXPECT_HAS(json_refusal(deep), "nested more than");
  EXPECT_STARTS(toml_refusal("hot = " + std::string(100000, '[')), "my.toml:1: ");
  std::string dotted = "a";
  for (int i = 0; i < 100000; ++i) dotted += ".a";
  EXPECT_HAS(toml_refusal("hot = 1\n" + dotted + " = 1"), "my.toml:2: more than 32 dots");
  EXPECT_HAS(toml_refusal("[" + dotted + "]"), "dots");
  EXPECT_HAS(toml_refusal("a.b.c.d.e.f.g.h.i.j.k = 1"), "nested more than");
  std::string nest;  // dotted keys inside arrays inside dotted keys, as deep as the parser goes
  for (int i = 0; i < 255; ++i) nest += "a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a=[\n{";
  EXPECT_STARTS(toml_refusal(nest), "my.toml:");
  EXPECT_HAS(toml_refusal(std::string(300000, '#')), "at most 262144");
  EXPECT_HAS(json_refusal("{\"" + std::string(5000, 'k') + "\": 1}"), "…");
  EXPECT_EQ(json_refusal("{\"\\u001b[2J\": 1}").find('\x1b'), std::string::npos);
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
  namespace fs = std::filesystem;
  std::string name = (fs::temp_directory_path() / "tierkv_config_XXXXXX").string();
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
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
  fs::remove_all(name);
}

// --- layers

TEST(Config, LaterOverridesWinAndTheRestIsInherited) {
  CacheConfig c;
  ASSERT_TRUE(
      apply_toml("[[layer]]\nlayers = \"0-3\"\nhot = 5\nsinks = 1\n[[layer]]\nlayers = 2\nhot = 6\narchive_codec = \"kivi2\"", c)
          .ok());
  EXPECT_EQ(c.layer(0), (LayerConfig{5, 448, "rot4", "auto", 1, 0}));
  EXPECT_EQ(c.layer(2), (LayerConfig{6, 448, "rot4", "kivi2", 1, 0}));
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

// --- validate

TEST(ConfigValidate, NamesWhatIsMissingOrImpossible) {
  EXPECT_HAS(validate(CacheConfig()).message(), "'num_layers' is not set");
  EXPECT_TRUE(validate(model()).ok()) << validate(model()).to_string();
  const auto message = [](auto change) {
    CacheConfig c = model();
    change(c);
    const Status status = validate(c);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    return status.message();
  };
  EXPECT_HAS(message([](auto& c) { c.head_dim = 40; }), "'head_dim' must be a whole number in 32..256, a multiple of 16");
  EXPECT_HAS(message([](auto& c) { c.num_heads = 10; }), "'num_heads' must be a multiple of 'num_kv_heads' (3), not 10");
  EXPECT_HAS(message([](auto& c) { c.num_kv_heads = 0; }), "'num_kv_heads' is not set");
  EXPECT_HAS(message([](auto& c) { c.warm_block = 8; }), "'warm_block' must be");
  EXPECT_HAS(message([](auto& c) { c.archive_block = 96; }), "'archive_block' must be a multiple of 'warm_block' (64), not 96");
  EXPECT_HAS(message([](auto& c) { c.tiers.warm_codec = "nope"; }), "'warm_codec' names no codec");
  EXPECT_HAS(message([](auto& c) { c.tiers.hot = (1u << 30) + 1; }), "'hot' must be");
  EXPECT_HAS(message([](auto& c) { c.max_seq_len = 4; }), "'sinks' (4) must be below 'max_seq_len' (4)");
  EXPECT_HAS(message([](auto& c) { c.max_seq_len = 5, c.eviction.policy = "h2o"; }),
             "'sinks' (4) must be at least 2 below 'max_seq_len' (5)");
  EXPECT_HAS(message([](auto& c) { c.byte_budget = 1; }), "'byte_budget' (1) is too small for one block in every layer");
  EXPECT_HAS(message([](auto& c) { c.overrides.push_back({2, 4, 1u, {}, {}, {}, {}, {}}); }), "'layer[0].layers' names layer 4");
  EXPECT_HAS(message([](auto& c) { c.overrides.push_back({3, 2, 1u, {}, {}, {}, {}, {}}); }), "ends before it starts");
  EXPECT_HAS(message([](auto& c) { c.overrides.push_back({0, 1, {}, {}, {}, {}, {}, {}}); }), "override nothing");
  EXPECT_HAS(message([](auto& c) {
               c.overrides.push_back({0, 1, {}, {}, {}, {}, "nope", {}});
             }),
             "'layer[0].warm_codec' names no codec");
  EXPECT_HAS(message([](auto& c) {
               c.overrides.push_back({0, 1, {}, {}, 200u, {}, {}, {}}), c.max_seq_len = 9;
             }),
             "'layer[0].sinks' (200)");
  EXPECT_HAS(message([](auto& c) { c.eviction.policy = "lru"; }), "'eviction.policy' must be one of none, h2o");
  EXPECT_HAS(message([](auto& c) { c.eviction.pool = 6; }), "'eviction.pool' must be an odd number");
  EXPECT_HAS(message([](auto& c) { c.quality_target = std::numeric_limits<double>::quiet_NaN(); }), "'quality_target' must be");
  EXPECT_HAS(message([](auto& c) { c.threads = 2000; }), "'threads' must be a whole number in 1..1024");
  EXPECT_HAS(message([](auto& c) { c.hot_type = "fp32"; }), "'hot_type' must be one of fp16, bf16");
  EXPECT_HAS(message([](auto& c) { c.model = "\xff"; }), "'model' must be UTF-8");
}

TEST(ConfigValidate, AnUnusedCodecMayBeAnything) {
  CacheConfig c = model();
  c.tiers.hot = kAll;
  EXPECT_TRUE(validate(c).ok());
  c.tiers.hot = 64, c.tiers.window = 32;  // a ring of FP16 rows
  EXPECT_TRUE(validate(c).ok());
}

TEST(ConfigValidate, ABadModelNameStillPrints) {
  CacheConfig c = model();
  c.model = "\xff";
  EXPECT_HAS(to_json(c), "num_layers");
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
