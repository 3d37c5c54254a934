// The header from C++, errors per thread, and exceptions that stop at the wall. The rest of the C API is tested by a C program,
// tests/c_api_test.c.
#include "tierkv/c.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>

#include "base/folder_testing.h"
#include "capi/guard.h"
#include "snapshot/deep_testing.h"

namespace tierkv::capi {
namespace {

TEST(Guard, NoExceptionGetsPast) {
  EXPECT_EQ(guarded([]() -> Status { throw std::bad_alloc(); }), TIERKV_RESOURCE_EXHAUSTED);
  EXPECT_STREQ(tierkv_last_error(), "the system refused memory");
  EXPECT_EQ(guarded([]() -> Status { throw std::runtime_error("boom"); }), TIERKV_INTERNAL);
  EXPECT_STREQ(tierkv_last_error(), "boom");
  EXPECT_EQ(guarded([]() -> Status { throw 7; }), TIERKV_INTERNAL);
  EXPECT_EQ(guarded([]() -> Status { return {}; }), TIERKV_OK);
  EXPECT_STREQ(tierkv_last_error(), "");
}

TEST(Guard, LongMessagesAreCutNotOverrun) {
  const std::string longest(5000, 'x');
  EXPECT_EQ(guarded([&]() -> Status { return Status(StatusCode::data_loss, longest); }), TIERKV_DATA_LOSS);
  const std::string kept = tierkv_last_error();
  EXPECT_EQ(kept.size(), 1023u);
  EXPECT_EQ(kept.substr(1020), "...");
}

TEST(LastError, BelongsToItsThread) {
  EXPECT_EQ(tierkv_flush(nullptr), TIERKV_INVALID_ARGUMENT);
  const std::string here = tierkv_last_error();
  EXPECT_NE(here, "");
  std::thread([] {
    EXPECT_STREQ(tierkv_last_error(), "");
    EXPECT_EQ(tierkv_truncate(nullptr, 1, 1), TIERKV_INVALID_ARGUMENT);
  }).join();
  EXPECT_EQ(tierkv_last_error(), here);
  EXPECT_NE(tierkv_preset_name(0), nullptr);
  EXPECT_EQ(tierkv_last_error(), here) << "names leave the last error alone";
}

TEST(Create, AbsurdShapesAreRefusedNotThrown) {
  tierkv_config* config = nullptr;
  ASSERT_EQ(tierkv_config_create(&config), TIERKV_OK);
  ASSERT_EQ(tierkv_config_set_model(config, "x", 0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu, 256), TIERKV_OK);
  tierkv_cache* cache = nullptr;
  EXPECT_EQ(tierkv_cache_create(config, &cache), TIERKV_INVALID_ARGUMENT);
  EXPECT_EQ(cache, nullptr);
  tierkv_config_destroy(config);
}

TEST(Park, PacksWakesAndReports) {
  namespace made_up = tierkv::deep::testing;
  const TestFolder folder;
  const std::string path = folder.file("deep.tkc");
  ASSERT_TRUE(snapshot::testing::calibration()->save(path).ok());
  tierkv_config* config = nullptr;
  ASSERT_EQ(tierkv_config_create(&config), TIERKV_OK);
  ASSERT_EQ(tierkv_config_set_model(config, "", made_up::kLayers, 2 * made_up::kHeads, made_up::kHeads, made_up::kDim), TIERKV_OK);
  ASSERT_EQ(tierkv_config_apply_inline(config, ("hot=32,warm=64,archive=rot4,deep.ratio=12,calibration=" + path).c_str()),
            TIERKV_OK);
  tierkv_cache* cache = nullptr;
  ASSERT_EQ(tierkv_cache_create(config, &cache), TIERKV_OK) << tierkv_last_error();
  tierkv_seq seq = 0;
  ASSERT_EQ(tierkv_seq_add(cache, &seq), TIERKV_OK);
  const made_up::Text text = made_up::model().text(500, 0);
  for (uint32_t l = 0; l < made_up::kLayers; ++l) {
    ASSERT_EQ(tierkv_append_f32(cache, seq, l, text.keys[l].data(), text.values[l].data(), 500), TIERKV_OK);
  }
  tierkv_deep_report report{};
  EXPECT_EQ(tierkv_seq_park(cache, seq, nullptr, &report), TIERKV_INVALID_ARGUMENT);  // size is not set
  report.size = sizeof report;
  tierkv_deep_options options{};
  EXPECT_EQ(tierkv_seq_park(cache, seq, &options, &report), TIERKV_INVALID_ARGUMENT);
  EXPECT_EQ(tierkv_seq_park(nullptr, seq, nullptr, nullptr), TIERKV_INVALID_ARGUMENT);
  EXPECT_EQ(tierkv_seq_park(cache, seq + 1, nullptr, nullptr), TIERKV_NOT_FOUND);
  int parked = -1;
  ASSERT_EQ(tierkv_seq_is_parked(cache, seq, &parked), TIERKV_OK);
  EXPECT_EQ(parked, 0);
  ASSERT_EQ(tierkv_seq_park(cache, seq, nullptr, &report), TIERKV_OK) << tierkv_last_error();
  EXPECT_NEAR(report.ratio, 12.0, 0.3);
  EXPECT_EQ(report.first_position, 4u);
  ASSERT_EQ(tierkv_seq_is_parked(cache, seq, &parked), TIERKV_OK);
  EXPECT_EQ(parked, 1);
  tierkv_memory memory{};
  memory.size = sizeof memory;
  ASSERT_EQ(tierkv_seq_memory_usage(cache, seq, &memory), TIERKV_OK);
  EXPECT_EQ(memory.parked_tokens, static_cast<uint64_t>(report.tokens) * made_up::kLayers * made_up::kHeads);
  EXPECT_GE(memory.parked_bytes, report.bytes);
  ASSERT_EQ(tierkv_memory_usage(cache, &memory), TIERKV_OK);
  uint64_t sum = memory.bookkeeping_bytes + memory.free_bytes + memory.parked_bytes;
  for (const tierkv_tier_memory& tier : memory.tier) sum += tier.payload_bytes + tier.overhead_bytes;
  EXPECT_EQ(sum, memory.total_bytes);
  EXPECT_GT(memory.table_bytes, 0u) << "the calibration's, beside the total";
  EXPECT_EQ(tierkv_truncate(cache, seq, 10), TIERKV_FAILED_PRECONDITION);
  EXPECT_NE(std::string(tierkv_last_error()).find("wake()"), std::string::npos) << tierkv_last_error();
  ASSERT_EQ(tierkv_seq_wake(cache, seq), TIERKV_OK) << tierkv_last_error();
  EXPECT_EQ(tierkv_seq_wake(cache, seq), TIERKV_FAILED_PRECONDITION);
  EXPECT_EQ(tierkv_truncate(cache, seq, 450), TIERKV_OK);
  tierkv_deep_options_init(&options);
  options.quality = 0.9;
  ASSERT_EQ(tierkv_seq_park(cache, seq, &options, &report), TIERKV_OK) << tierkv_last_error();
  EXPECT_NEAR(report.quality, 0.9, 0.02);
  EXPECT_EQ(tierkv_seq_remove(cache, seq), TIERKV_OK);
  tierkv_cache_destroy(cache);
  tierkv_config_destroy(config);
}

TEST(ColdStore, PromotesAndDemotesAndReports) {
  const TestFolder folder;
  tierkv_config* config = nullptr;
  ASSERT_EQ(tierkv_config_create(&config), TIERKV_OK);
  ASSERT_EQ(tierkv_config_set_model(config, "", 1, 2, 1, 64), TIERKV_OK);
  ASSERT_EQ(tierkv_config_apply_inline(config, ("hot=32,warm=64,archive=rot2,cold=" + folder.path()).c_str()), TIERKV_OK);
  tierkv_cache* cache = nullptr;
  ASSERT_EQ(tierkv_cache_create(config, &cache), TIERKV_OK) << tierkv_last_error();
  tierkv_seq seq = 0;
  ASSERT_EQ(tierkv_seq_add(cache, &seq), TIERKV_OK);
  std::vector<float> rows(500 * 64);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i * 37 % 101) / 101.0f;
  ASSERT_EQ(tierkv_append_f32(cache, seq, 0, rows.data(), rows.data(), 500), TIERKV_OK);
  tierkv_promotion_report report{};
  EXPECT_EQ(tierkv_seq_promote(cache, seq, 0, UINT32_MAX, &report), TIERKV_INVALID_ARGUMENT) << "size is not set";
  EXPECT_EQ(tierkv_seq_promote(nullptr, seq, 0, 1, nullptr), TIERKV_INVALID_ARGUMENT);
  EXPECT_EQ(tierkv_seq_demote(cache, seq + 1, 0, 1), TIERKV_NOT_FOUND);
  report.size = sizeof report;
  ASSERT_EQ(tierkv_seq_promote(cache, seq, 0, UINT32_MAX, &report), TIERKV_OK) << tierkv_last_error();
  EXPECT_EQ(report.blocks, 3u);
  EXPECT_EQ(report.tokens, 3 * 128u);
  EXPECT_EQ(report.without_copy, 0u);
  tierkv_memory memory{};
  memory.size = sizeof memory;
  ASSERT_EQ(tierkv_memory_usage(cache, &memory), TIERKV_OK);
  EXPECT_EQ(memory.promoted_tokens, report.tokens);
  EXPECT_GT(memory.promoted_bytes, 0u);
  EXPECT_GT(memory.cold_bytes, 0u);
  ASSERT_EQ(tierkv_seq_demote(cache, seq, 0, UINT32_MAX), TIERKV_OK);
  ASSERT_EQ(tierkv_memory_usage(cache, &memory), TIERKV_OK);
  EXPECT_EQ(memory.promoted_bytes, 0u);
  tierkv_cache_destroy(cache);
  tierkv_config_destroy(config);
}

TEST(Learning, BeginsOnceAndReports) {
  tierkv_config* config = nullptr;
  ASSERT_EQ(tierkv_config_create(&config), TIERKV_OK);
  ASSERT_EQ(tierkv_config_set_model(config, "", 2, 4, 2, 64), TIERKV_OK);
  tierkv_cache* cache = nullptr;
  ASSERT_EQ(tierkv_cache_create(config, &cache), TIERKV_OK) << tierkv_last_error();
  std::vector<tierkv_rope_pair> rope;
  for (uint16_t p = 0; p < 32; ++p) rope.push_back({p, static_cast<uint16_t>(p + 32), 1.0 / (1.0 + p)});
  const tierkv_rope_pair* ropes[] = {rope.data(), rope.data()};
  uint32_t pairs[] = {32, 32};
  tierkv_learning_model model{};
  EXPECT_EQ(tierkv_learn(cache, &model, 0, nullptr), TIERKV_INVALID_ARGUMENT) << "size is not set";
  model.size = sizeof model;
  EXPECT_EQ(tierkv_learn(cache, &model, 0, nullptr), TIERKV_INVALID_ARGUMENT) << "no ropes";
  model.ropes = ropes;
  model.rope_pairs = pairs;
  pairs[1] = 33;
  EXPECT_EQ(tierkv_learn(cache, &model, 0, nullptr), TIERKV_INVALID_ARGUMENT);
  pairs[1] = 32;
  EXPECT_EQ(tierkv_learn(nullptr, &model, 0, nullptr), TIERKV_INVALID_ARGUMENT);
  EXPECT_EQ(tierkv_learn(cache, nullptr, 0, nullptr), TIERKV_INVALID_ARGUMENT);
  char sentence[200] = "";
  tierkv_learning_report report{};
  EXPECT_EQ(tierkv_learning(cache, &report, nullptr, 0), TIERKV_INVALID_ARGUMENT) << "size is not set";
  report.size = sizeof report;
  ASSERT_EQ(tierkv_learning(cache, &report, sentence, sizeof sentence), TIERKV_OK);
  EXPECT_EQ(report.phase, TIERKV_LEARNING_OFF);
  EXPECT_NE(std::string(sentence).find("not calibrated"), std::string::npos) << sentence;
  ASSERT_EQ(tierkv_learn(cache, &model, 0, nullptr), TIERKV_OK) << tierkv_last_error();
  EXPECT_EQ(tierkv_learn(cache, &model, 0, nullptr), TIERKV_FAILED_PRECONDITION);
  EXPECT_EQ(tierkv_learn_residual(cache, 1, 2.0), TIERKV_OK);
  ASSERT_EQ(tierkv_learning(cache, &report, sentence, 20), TIERKV_OK);
  EXPECT_EQ(report.phase, TIERKV_LEARNING_GATHERING);
  EXPECT_EQ(report.waiting, 1);
  EXPECT_EQ(report.wanted, 8192u);
  EXPECT_EQ(std::string(sentence), "learning this model");
  EXPECT_EQ(tierkv_learning(cache, nullptr, nullptr, 5), TIERKV_INVALID_ARGUMENT);
  tierkv_cache_destroy(cache);
  tierkv_config_destroy(config);
}

}  // namespace
}  // namespace tierkv::capi
