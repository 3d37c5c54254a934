// What configurations in text are refused for, and how the refusal reads: key, allowed values, place.
#include <gtest/gtest.h>

#include <limits>

#include "config/schema.h"
#include "config/testing.h"
#include "tierkv/config.h"

namespace tierkv {
namespace {

using namespace config::testing;

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

}  // namespace
}  // namespace tierkv
