// ctest: slow
// model_based_test.cc — 100,000 random operations on several sequences against a naive reference cache.
//
//   TIERKV_SEED=n       the same run again
//   TIERKV_MODEL_OPS=n  operations for each configuration
#include <gtest/gtest.h>

#include <cstdlib>

#include "model_checks.h"
#include "model_cold.h"
#include "model_machine.h"
#include "model_operations.h"
#include "model_parking.h"
#include "model_refusals.h"

namespace tierkv::testing {
namespace {

constexpr const char* kSmall = "warm_block=16,archive_block=32,";

// Layer 1 a ring, layer 2 blocks that are dropped as they leave the window.
void three_kinds_of_layers(CacheConfig& c) {
  c.num_layers = 3;
  c.overrides.resize(2);
  c.overrides[0].first = c.overrides[0].last = 1;
  c.overrides[0].window = 24, c.overrides[0].hot = 64;
  c.overrides[1].first = c.overrides[1].last = 2;
  c.overrides[1].window = 40;
}

std::vector<MachineSetup> setups() {
  const std::string small = kSmall;
  const std::string eviction =
      small + "hot=16,warm=32,warm_codec=kivi8-g16,archive=kivi8-g16,sinks=4,protect_recent=8,evict_batch=8,observation=8,";
  std::vector<MachineSetup> all = {
      {"tiers", small + "hot=16,warm=48,warm_codec=kivi8-g16,archive=kivi4-g16,sinks=4", 0.45},
      {"rotated", "hot=32,warm=64,warm_codec=rot4,archive=rot2,sinks=4,warm_block=32,archive_block=64,threads=2", 1.6},
      {"different_sides", small + "hot=8,warm=32,warm_codec=kivi8-g16/int8,archive=kivi6-g16+center/kivi5-g16,sinks=1", 0.25},
      {"better_rows", small + "hot=16,warm=48,warm_codec=kivi8-g16,archive=kivi4-g16+top3/kivi4-g16+top5,sinks=4", 0.45},
      {"turbo", small + "hot=16,warm=32,warm_codec=turbo4,archive=turbo3,sinks=3", 1.2},
      {"exact", small + "hot=8,warm=32,warm_codec=fp16,archive=fp16,sinks=2", 0.0, 400},
      {"exact_bf16", small + "hot=8,warm=32,warm_codec=bf16,archive=bf16,sinks=2,hot_type=bf16", 0.0, 400},
      {"bf16", small + "hot=16,warm=32,warm_codec=kivi8-g16,archive=kivi8-g16,sinks=2,hot_type=bf16", 0.05},
      {"hot_all", "hot=all,threads=2", 0.0, 300},
      {"nothing_hot", small + "hot=0,warm=0,archive=kivi8-g16,sinks=2", 0.05},
      {"warm_only", small + "hot=4,warm=all,warm_codec=int8,sinks=0", 0.05},
      {"adapting", small + "hot=32,warm=32,warm_codec=kivi8-g16,archive=kivi3-g16,sinks=4", 1.0, 256, true},
      {"limited", small + "hot=16,warm=32,warm_codec=kivi8-g16,archive=kivi8-g16,max_seq_len=120", 0.05},
      {"budget", small + "hot=16,warm=32,warm_codec=kivi8-g16,archive=kivi4-g16,budget=96KiB", 0.45},
      {"budget_window", small + "hot=16,warm=32,warm_codec=kivi8-g16,archive=kivi8-g16,budget=64KiB,window=48,window_slack=4", 0.1},
      {"budget_ring", small + "hot=64,budget=64KiB,window=48,window_slack=4", 0.0},
      {"budget_h2o", eviction + "evict=h2o,budget=96KiB", 0.2, 200},
      {"budget_h2o_better_rows",
       small + "hot=16,warm=32,warm_codec=kivi8-g16,archive=kivi8-g16+top2,sinks=4,protect_recent=8,evict_batch=8,observation=8,"
               "evict=h2o,budget=112KiB",
       0.2, 200},
      {"budget_streaming", eviction + "evict=streaming_llm,budget=112KiB,max_seq_len=90", 0.2, 200},
      {"windows", small + "hot=16,warm=32,warm_codec=kivi8-g16,archive=kivi8-g16,sinks=4,window_slack=8", 0.1, 400, false,
       three_kinds_of_layers},
      {"windows_h2o", eviction + "evict=h2o,max_seq_len=70,window_slack=8", 0.2, 200, false, three_kinds_of_layers},
      {"budget_windows_tova", eviction + "evict=tova,budget=160KiB,window_slack=8", 0.2, 200, false, three_kinds_of_layers},
      {"ring_no_slack", "hot=64,window=17,window_slack=0,sinks=4,threads=2", 0.0, 400},
      {"window_fp16", small + "hot=4,warm=16,warm_codec=fp16,archive=fp16,window=20,window_slack=4", 0.0, 400},
  };
  for (const char* policy :
       {"h2o", "sliding_window", "streaming_llm", "tova", "snapkv", "scissorhands", "pyramidkv", "pyramidkv_linear", "akv"}) {
    all.push_back({policy, eviction + "max_seq_len=70,evict=" + policy, 0.2, 200});
  }
  // With tables: they park, wake, and get another calibration under way.
  const auto calibrated = [&](const char* name, const std::string& settings, double row_tolerance, uint32_t max_length = 400) {
    all.push_back({name, small + settings, row_tolerance, max_length});
    all.back().calibrated = true;
  };
  calibrated("klt", "hot=16,warm=32,warm_codec=kivi8-g16,archive=klt1.875,sinks=4", 3.0);
  calibrated("klt_better_rows", "hot=16,warm=32,warm_codec=kivi8-g16,archive=klt1.5+top2,sinks=4,threads=2", 3.0);
  calibrated("klt_auto", "hot=16,warm=32,warm_codec=rot4,archive=auto,sinks=4,threads=2", 3.0);
  calibrated("kltk_nothing_warm", "hot=16,warm=0,archive=kltk4/kivi8-g16,sinks=2", 3.0);
  calibrated("kvquant_squat", "hot=8,warm=32,warm_codec=squat4/kivi8-g16,archive=kvquant3,sinks=4", 3.0);
  calibrated("parked_plain", "hot=16,warm=32,warm_codec=kivi8-g16,archive=kivi8-g16,sinks=4", 3.0);
  calibrated("klt_budget", "hot=16,warm=32,warm_codec=kivi8-g16,archive=klt2.5,sinks=4,budget=256KiB", 3.0);
  calibrated("klt_h2o",
             "hot=16,warm=32,warm_codec=kivi8-g16,archive=klt1.875,sinks=4,protect_recent=8,evict_batch=8,observation=8,"
             "max_seq_len=90,evict=h2o",
             3.0, 200);
  // With a cold file: they promote and demote.
  const auto cold = [&](const char* name, const std::string& settings, double row_tolerance, bool tables, bool faults = false) {
    all.push_back({name, small + settings, row_tolerance, 400});
    all.back().calibrated = tables;
    all.back().cold = true;
    all.back().cold_faults = faults;
  };
  cold("cold", "hot=16,warm=48,warm_codec=fp16,archive=kivi4-g16,sinks=4,cold_codec=fp16,threads=2", 0.45, false);
  cold("cold_int8", "hot=16,warm=0,archive=kivi3-g16,sinks=4,cold_codec=int8", 1.0, false);
  cold("cold_budget", "hot=16,warm=32,warm_codec=fp16,archive=kivi4-g16,sinks=4,cold_codec=fp16,budget=160KiB", 0.45, false);
  cold("cold_limit", "hot=16,warm=32,warm_codec=fp16,archive=kivi4-g16,sinks=4,cold_codec=fp16,cold_budget=64KiB", 0.45, false);
  cold("cold_klt", "hot=16,warm=32,warm_codec=fp16,archive=klt1.875,sinks=4,cold_codec=fp16", 3.0, true);
  cold("cold_faults", "hot=16,warm=32,warm_codec=fp16,archive=klt1.875,sinks=4,cold_codec=fp16", 3.0, true, true);
  // They also promote by themselves, whenever attention is sharp enough.
  cold("promote", "hot=16,warm=32,warm_codec=fp16,archive=kivi4-g16,sinks=4,cold_codec=fp16,promote=2,threads=2", 0.45, false);
  cold("promote_klt", "hot=16,warm=32,warm_codec=fp16,archive=klt1.875,sinks=4,cold_codec=fp16,promote=3", 3.0, true);
  cold("promote_klt_better_rows", "hot=16,warm=32,warm_codec=fp16,archive=klt1.875+top2,sinks=4,cold_codec=fp16,promote=3", 3.0,
       true);
  cold("spill", "hot=16,warm=32,warm_codec=fp16,archive=kivi4-g16,sinks=4,cold_codec=fp16,budget=128KiB,spill=exact", 0.45, false);
  cold("spill_klt", "hot=16,warm=32,warm_codec=fp16,archive=klt1.875,sinks=4,cold_codec=fp16,budget=128KiB,spill=exact", 3.0, true);
  // With summaries, which nothing must lose count of; what is chosen is everything, so that the reference is the same.
  cold("skip", "hot=16,warm=32,warm_codec=fp16,archive=kivi4-g16,sinks=4,cold_codec=fp16,skip=top:100000", 0.45, false);
  cold("skip_klt", "hot=16,warm=32,warm_codec=fp16,archive=klt1.875+top4,sinks=4,cold_codec=fp16,skip=bounded:0", 3.0, true);
  cold("skip_spill",
       "hot=16,warm=32,warm_codec=fp16,archive=kivi4-g16,sinks=4,cold_codec=fp16,budget=112KiB,spill=exact,skip=top_p:1", 0.45,
       false);
  // A bound so small that what is left out is below the tolerance of the comparison.
  cold("skip_bounded", "hot=16,warm=32,warm_codec=fp16,archive=kivi4-g16,sinks=4,cold_codec=fp16,skip=bounded:1e-5", 0.45, false);
  cold("spill_better_rows",
       "hot=16,warm=32,warm_codec=fp16,archive=kivi4-g16+top3,sinks=4,cold_codec=fp16,budget=128KiB,spill=exact", 0.45, false);
  cold("spill_klt_better_rows",
       "hot=16,warm=32,warm_codec=fp16,archive=klt1.5+top2,sinks=4,cold_codec=fp16,budget=144KiB,spill=exact,threads=2", 3.0, true);
  cold("cold_better_rows", "hot=16,warm=48,warm_codec=fp16,archive=kivi4-g16+top3,sinks=4,cold_codec=fp16", 0.45, false);
  cold("cold_h2o",
       "hot=16,warm=32,warm_codec=fp16,archive=kivi8-g16,sinks=4,protect_recent=8,evict_batch=8,observation=8,max_seq_len=120,"
       "evict=h2o,cold_codec=fp16",
       0.2, false);
  // Past splits of attention, in shapes that are cheap.
  const auto grows_long = [&](const char* name, const std::string& settings, double row_tolerance, bool tables) {
    all.push_back({name, settings, row_tolerance, 3200});
    all.back().grows_long = true;
    all.back().calibrated = tables;
    all.back().more = [](CacheConfig& c) { c.num_layers = c.num_kv_heads = 1, c.num_heads = 2; };
  };
  grows_long("long_exact", "hot=64,warm=256,warm_codec=fp16,archive=fp16,sinks=4", 0.0, false);
  grows_long("long_rotated", "hot=64,warm=256,warm_codec=rot4,archive=rot2,sinks=4,threads=2", 1.6, false);
  grows_long("long_klt", "hot=64,warm=256,warm_codec=rot4,archive=klt1.875,sinks=4,threads=2", 3.0, true);
  all.push_back({"tiny_limit",
                 small + "hot=4,warm=0,archive=kivi8-g16,sinks=4,protect_recent=2,evict_batch=1,max_seq_len=8,evict=h2o", 0.2,
                 200});
  return all;
}

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

uint64_t operations_each() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const uint64_t total = 20000;
#else
  const uint64_t total = 108000;
#endif
  const uint64_t n = setups().size();
  return setting("TIERKV_MODEL_OPS", (total + n - 1) / n);
}

class ModelBased : public ::testing::TestWithParam<MachineSetup> {};

TEST_P(ModelBased, BehavesLikeTheReference) {
  uint64_t seed = 20250101;
  for (const char c : GetParam().name) seed = seed * 131 + static_cast<unsigned char>(c);
  seed = setting("TIERKV_SEED", seed);
  std::printf("seed %llu, %llu operations\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(operations_each()));
  Machine machine(GetParam(), seed);
  // A long sequence costs ten times a short one, and finds what is special about it sooner.
  const uint64_t operations = GetParam().grows_long ? operations_each() / 3 : operations_each();
  ASSERT_TRUE(machine.run(operations)) << machine.report();
  if (operations < 500) return;  // too few to count on chance, as under sanitizers
  if (GetParam().grows_long) {
    EXPECT_GT(machine.times("over splits"), 10u) << machine.report();
  }
  if (GetParam().cold) {
    EXPECT_GT(machine.times("promoted"), 2u) << machine.report();
    if (GetParam().settings.find("spill=") != std::string::npos) {
      EXPECT_GT(machine.times("over spilled blocks"), 50u) << machine.report();
    }
  }
  if (GetParam().cold_faults) {
    EXPECT_GT(machine.times("damaged copy"), 0u) << machine.report();
  }
  if (!GetParam().calibrated) return;
  EXPECT_GT(machine.times("calibrated"), 0u) << machine.report();
  if (GetParam().settings.find("evict=h2o") != std::string::npos) return;  // keeps statistics of its tokens: cannot be parked
  EXPECT_GT(machine.times("parked"), 3u) << machine.report();
  EXPECT_GT(machine.times("woken"), 3u) << machine.report();
  EXPECT_GT(machine.times("deep snapshot"), 0u) << machine.report();
}

INSTANTIATE_TEST_SUITE_P(Random, ModelBased, ::testing::ValuesIn(setups()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tierkv::testing
