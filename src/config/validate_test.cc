// Configurations that are well written and cannot work.
#include <gtest/gtest.h>

#include "config/testing.h"
#include "tierkv/config.h"

namespace tierkv {
namespace {

using namespace config::testing;

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

}  // namespace
}  // namespace tierkv
