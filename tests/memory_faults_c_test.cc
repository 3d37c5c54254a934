// Memory that runs out anywhere in a call, through the C API: a status number and a sentence, and the cache as it was.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "base/folder_testing.h"
#include "capi/handles.h"
#include "memory_faults.h"
#include "tierkv/c.h"

namespace tierkv {
namespace {

using testing::Call;
using testing::FailingMemory;
using testing::Faults;
using testing::refuse_each;

constexpr uint32_t kLayers = 2, kHeads = 4, kKvHeads = 2, kDim = 64, kTokens = 300;
constexpr const char* kTiers = "hot=32,warm=64,archive=rot2,sinks=4,warm_block=32,archive_block=64,threads=2";

// A failure has a sentence, whatever there is no memory for.
StatusCode code_of(tierkv_status status) {
  if (status != TIERKV_OK && std::strlen(tierkv_last_error()) == 0) return StatusCode::internal;
  return static_cast<StatusCode>(status);
}

struct World {
  tierkv_config* config = nullptr;
  tierkv_cache* cache = nullptr;
  tierkv_seq seq = 0;
  std::vector<float> rows = std::vector<float>(size_t{kTokens} * kHeads * kDim);
  std::vector<float> out = std::vector<float>(size_t{64} * kHeads * kDim);
  std::vector<float> mass = std::vector<float>(size_t{kKvHeads} * kTokens);
  const TestFolder folder;
  std::string path = folder.file("sequence");
  std::string thresholds = path + ".json";
  void* bytes = nullptr;
  size_t size = 0;

  World() {
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>((i * 7919) % 997) / 499.0f - 1.0f;
    EXPECT_EQ(tierkv_config_create(&config), TIERKV_OK);
    EXPECT_EQ(tierkv_config_set_model(config, "a model with a name that is not short", kLayers, kHeads, kKvHeads, kDim), TIERKV_OK);
    EXPECT_EQ(tierkv_config_apply_inline(config, kTiers), TIERKV_OK);
    EXPECT_EQ(tierkv_cache_create(config, &cache), TIERKV_OK);
    EXPECT_EQ(tierkv_seq_add(cache, &seq), TIERKV_OK);
    for (uint32_t l = 0; l < kLayers; ++l) {
      EXPECT_EQ(tierkv_append_f32(cache, seq, l, rows.data(), rows.data(), kTokens), TIERKV_OK);
    }
    EXPECT_EQ(tierkv_freeze(cache, seq, &bytes, &size), TIERKV_OK);
    EXPECT_EQ(tierkv_save(cache, seq, path.c_str()), TIERKV_OK);
    EXPECT_EQ(tierkv_save_thresholds(cache, thresholds.c_str()), TIERKV_OK);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() {
    tierkv_free(bytes);
    tierkv_config_destroy(config);
    tierkv_cache_destroy(cache);
  }
};

using Do = tierkv_status (*)(World&);

void check(const char* name, Do run, Faults faults = {}) {
  const long refusals = refuse_each(
      [&] {
        auto world = std::make_shared<World>();
        return Call{name, [world, run] { return code_of(run(*world)); }, world->cache->value.get()};
      },
      faults);
  EXPECT_TRUE(refusals > 0 || faults.may_need_none) << name << " asked for no memory: the test tests nothing";
}

TEST(MemoryFaultsInC, Configuration) {
  check("config_create", [](World&) {
    tierkv_config* made = nullptr;
    const tierkv_status status = tierkv_config_create(&made);
    tierkv_config_destroy(made);
    return status;
  });
  check("config_set_model", [](World& w) {
    return tierkv_config_set_model(w.config, "another model with a name that is longer than the first", 1, 1, 1, 64);
  });
  check("config_apply_preset", [](World& w) { return tierkv_config_apply_preset(w.config, "compact"); });
  check("config_apply_spec", [](World& w) { return tierkv_config_apply_spec(w.config, "balanced,hot=64"); });
  check("config_apply_toml",
        [](World& w) { return tierkv_config_apply_toml(w.config, "hot = 64\n[eviction]\npolicy = \"h2o\"\n"); });
  check("config_apply_json", [](World& w) { return tierkv_config_apply_json(w.config, "{\"hot\": 64}"); });
  check("config_to_json", [](World& w) {
    char* text = nullptr;
    const tierkv_status status = tierkv_config_to_json(w.config, &text);
    tierkv_free(text);
    return status;
  });
  check("config_validate", [](World& w) { return tierkv_config_validate(w.config); });
  check("cache_create", [](World& w) {
    tierkv_cache* made = nullptr;
    const tierkv_status status = tierkv_cache_create(w.config, &made);
    tierkv_cache_destroy(made);
    return status;
  });
}

TEST(MemoryFaultsInC, Tokens) {
  check("seq_add", [](World& w) { return tierkv_seq_add(w.cache, &w.seq); });
  check("seq_fork", [](World& w) { return tierkv_seq_fork(w.cache, w.seq, &w.seq); });
  check("seq_list", [](World& w) { return tierkv_seq_list(w.cache, nullptr, 0, &w.size); });
  check("append", [](World& w) { return tierkv_append_f32(w.cache, w.seq, 0, w.rows.data(), w.rows.data(), 100); });
  check("attention", [](World& w) { return tierkv_attention_f32(w.cache, w.seq, 0, w.rows.data(), 1, w.out.data()); });
  check("attention with masses", [](World& w) {
    tierkv_attention_options options;
    tierkv_attention_options_init(&options);
    options.token_mass = w.mass.data();
    options.token_mass_size = w.mass.size();
    const tierkv_rows queries = tierkv_rows_dense(w.rows.data(), TIERKV_F32, 5, kHeads, kDim);
    return tierkv_attention(w.cache, w.seq, 0, &queries, w.out.data(), &options);
  });
  check("get", [](World& w) {
    const uint32_t at[] = {3, 40, 150, 299};
    return tierkv_get(w.cache, w.seq, 0, at, 4, w.out.data(), nullptr);
  });
  check("positions", [](World& w) { return tierkv_positions(w.cache, w.seq, 0, 0, nullptr, 0, &w.size); });
}

TEST(MemoryFaultsInC, StatisticsAndSnapshots) {
  check("memory_usage",
        [](World& w) {
          tierkv_memory memory{};
          memory.size = sizeof memory;
          return tierkv_memory_usage(w.cache, &memory);
        },
        {.may_need_none = true});
  check("get_thresholds", [](World& w) {
    tierkv_thresholds limits[kLayers];
    return tierkv_get_thresholds(w.cache, limits, sizeof *limits, kLayers, &w.size);
  });
  check("set_thresholds", [](World& w) {
    tierkv_thresholds limits[kLayers];
    const tierkv_status status = tierkv_get_thresholds(w.cache, limits, sizeof *limits, kLayers, &w.size);
    return status == TIERKV_OK ? tierkv_set_thresholds(w.cache, limits, sizeof *limits, kLayers) : status;
  });
  check("save_thresholds", [](World& w) { return tierkv_save_thresholds(w.cache, w.thresholds.c_str()); });
  check("load_thresholds", [](World& w) { return tierkv_load_thresholds(w.cache, w.thresholds.c_str()); });
  check("save", [](World& w) { return tierkv_save(w.cache, w.seq, w.path.c_str()); });
  check("load", [](World& w) { return tierkv_load(w.cache, w.path.c_str(), &w.seq); });
  check("freeze", [](World& w) {
    void* bytes = nullptr;
    const tierkv_status status = tierkv_freeze(w.cache, w.seq, &bytes, &w.size);
    tierkv_free(bytes);
    return status;
  });
  check("unfreeze", [](World& w) { return tierkv_unfreeze(w.cache, w.bytes, w.size, &w.seq); });
}

TEST(MemoryFaultsInC, WhatFreesAsksForNothing) {
  World world;
  tierkv_seq fork = 0;
  ASSERT_EQ(tierkv_seq_fork(world.cache, world.seq, &fork), TIERKV_OK);
  FailingMemory::arm(1, FailingMemory::Mode::from_then_on);
  const tierkv_status truncated = tierkv_truncate(world.cache, world.seq, 100);
  const tierkv_status removed = tierkv_seq_remove(world.cache, fork);
  tierkv_cache_destroy(world.cache);
  tierkv_config_destroy(world.config);
  const bool asked = FailingMemory::disarm();
  world.cache = nullptr;
  world.config = nullptr;
  EXPECT_EQ(truncated, TIERKV_OK);
  EXPECT_EQ(removed, TIERKV_OK);
  EXPECT_FALSE(asked);
}

}  // namespace
}  // namespace tierkv
