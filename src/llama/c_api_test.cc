// Tests of tierkv_llama_*: the three lines a libllama program adds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "llama/test_model.h"
#include "tierkv/calibrate.h"
#include "tierkv/snapshot.h"

namespace tierkv::llama {
namespace {

TEST(LlamaC, ThreeLinesGiveTheSameText) {
  const ModelPtr model = load_tiny("llama");
  llama_context_params params = test_params(32);
  char error[200] = "";
  tierkv_llama* kv = tierkv_llama_attach(&params, model.get(), "fp16", error, sizeof(error));
  ASSERT_NE(kv, nullptr) << error;
  llama_context* context = llama_init_from_model(model.get(), params);
  auto tokens = some_tokens(50, 1);
  ASSERT_EQ(tierkv_llama_decode(kv, context, llama_batch_get_one(tokens.data(), 50)), 0) << tierkv_llama_error(kv);
  const float* row = llama_get_logits_ith(context, -1);
  EXPECT_LT(worst_difference({{row, row + 384}}, {stock_logits(model.get(), tokens, 32).back()}), 1e-3);
  EXPECT_GT(tierkv_llama_bytes(kv), 3u * 2 * 32 * 4 * 50);  // 3 layers, 2 heads of 32, FP16
  EXPECT_EQ(tierkv_llama_seq_rm(kv, 0, 20), 0);
  EXPECT_EQ(tierkv_llama_decode(kv, context, llama_batch_get_one(tokens.data() + 20, 30)), 0);
  EXPECT_EQ(tierkv_llama_seq_cp(kv, 0, 9), -1);
  EXPECT_STRNE(tierkv_llama_error(kv), "");
  llama_free(context);
  tierkv_llama_free(kv);
}

TEST(LlamaC, EachSequenceAnswersForItself) {
  const ModelPtr model = load_tiny("llama");
  llama_context_params params = test_params(32);
  tierkv_llama* kv = tierkv_llama_attach(&params, model.get(), "fp16,max_seq_len=10", nullptr, 0);
  ASSERT_NE(kv, nullptr);
  llama_context* context = llama_init_from_model(model.get(), params);
  EXPECT_EQ(tierkv_llama_add_seq(kv), 1);
  const auto tokens = some_tokens(40, 1);
  TestBatch batch(40);
  for (int i = 0; i < 40; ++i) batch.add(tokens[static_cast<size_t>(i)], i % 35, i / 35);  // 35 of sequence 0, 5 of sequence 1
  EXPECT_EQ(tierkv_llama_decode(kv, context, batch.batch), 1) << "all or nothing";
  EXPECT_EQ(tierkv_llama_logits(kv, context, 39), nullptr);
  EXPECT_EQ(tierkv_llama_decode_each(kv, context, batch.batch), 1);
  EXPECT_EQ(tierkv_llama_seq_status(kv, 0), 1);
  EXPECT_NE(std::string(tierkv_llama_seq_error(kv, 0)).find("max_seq_len"), std::string::npos) << tierkv_llama_seq_error(kv, 0);
  EXPECT_EQ(tierkv_llama_seq_status(kv, 1), 0);
  EXPECT_STREQ(tierkv_llama_seq_error(kv, 1), "");
  EXPECT_EQ(tierkv_llama_logits(kv, context, 3), nullptr);
  const float* row = tierkv_llama_logits(kv, context, 39);
  ASSERT_NE(row, nullptr) << tierkv_llama_error(kv);
  EXPECT_EQ(tierkv_llama_logits(kv, context, -1), row);
  const std::vector<llama_token> alone(tokens.begin() + 35, tokens.end());
  EXPECT_LT(worst_difference({{row, row + 384}}, {stock_logits(model.get(), alone, 5).back()}), 1e-3);
  llama_free(context);
  tierkv_llama_free(kv);
}

TEST(LlamaC, NullIsAnErrorAndNeverACrash) {
  const ModelPtr model = load_tiny("llama");
  llama_context_params params = test_params(32);
  tierkv_llama* kv = tierkv_llama_attach(&params, model.get(), nullptr, nullptr, 0);
  ASSERT_NE(kv, nullptr);
  auto tokens = some_tokens(4, 1);
  const llama_batch batch = llama_batch_get_one(tokens.data(), 4);
  EXPECT_EQ(tierkv_llama_decode(kv, nullptr, batch), -1);
  EXPECT_EQ(std::string(tierkv_llama_error(kv)), "there is no context");
  EXPECT_EQ(tierkv_llama_decode_each(kv, nullptr, batch), -1);
  EXPECT_EQ(tierkv_llama_logits(kv, nullptr, 0), nullptr);
  EXPECT_EQ(tierkv_llama_save(kv, 0, nullptr), -1);
  EXPECT_EQ(tierkv_llama_load(kv, 0, nullptr), -1);
  EXPECT_EQ(std::string(tierkv_llama_error(kv)), "there is no path");
  EXPECT_EQ(tierkv_llama_decode_each(nullptr, nullptr, batch), -1);
  EXPECT_EQ(tierkv_llama_seq_status(nullptr, 0), 0);
  EXPECT_STREQ(tierkv_llama_seq_error(nullptr, 0), "");
  EXPECT_EQ(tierkv_llama_logits(nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(tierkv_llama_add_seq(nullptr), -1);
  EXPECT_EQ(tierkv_llama_bytes(nullptr), 0u);
  EXPECT_EQ(tierkv_llama_seq_rm(nullptr, 0, 0), -1);
  EXPECT_EQ(tierkv_llama_seq_cp(nullptr, 0, 0), -1);
  tierkv_llama_detach(nullptr);
  llama_context_params others = test_params(32);
  char error[100] = "";
  EXPECT_EQ(tierkv_llama_attach(&others, nullptr, "fp16", error, sizeof(error)), nullptr);
  EXPECT_NE(std::string(error).find("no model"), std::string::npos) << error;
  EXPECT_EQ(inspect(nullptr).status().code(), StatusCode::invalid_argument);
  tierkv_llama_free(kv);
}

TEST(LlamaC, ASavedSequenceGoesOnBitForBit) {
  const ModelPtr model = load_tiny("gemma3");
  llama_context_params params = test_params(32);
  tierkv_llama* kv = tierkv_llama_attach(&params, model.get(), "balanced", nullptr, 0);
  ASSERT_NE(kv, nullptr);
  llama_context* context = llama_init_from_model(model.get(), params);
  auto tokens = some_tokens(200, 2);
  const std::string path = testing::TempDir() + "tierkv_llama_session";
  ASSERT_EQ(tierkv_llama_decode(kv, context, llama_batch_get_one(tokens.data(), 190)), 0) << tierkv_llama_error(kv);
  ASSERT_EQ(tierkv_llama_save(kv, 0, path.c_str()), 0) << tierkv_llama_error(kv);
  ASSERT_EQ(tierkv_llama_decode(kv, context, llama_batch_get_one(tokens.data() + 190, 10)), 0);
  const float* row = llama_get_logits_ith(context, -1);
  const std::vector<float> before(row, row + 384);
  ASSERT_EQ(tierkv_llama_load(kv, 0, path.c_str()), 0) << tierkv_llama_error(kv);
  ASSERT_EQ(tierkv_llama_decode(kv, context, llama_batch_get_one(tokens.data() + 190, 10)), 0) << tierkv_llama_error(kv);
  row = llama_get_logits_ith(context, -1);
  EXPECT_EQ(std::vector<float>(row, row + 384), before);
  EXPECT_NE(tierkv_llama_load(kv, 0, (path + "-absent").c_str()), 0);
  std::remove(path.c_str());
  llama_free(context);
  tierkv_llama_free(kv);
}

TEST(LlamaC, FindsTheCalibrationThatWasMade) {
  const ModelPtr model = load_tiny("llama");
  const std::string folder = testing::TempDir() + "tierkv_llama_cache";
  std::filesystem::create_directories(folder + "/calibration");
  ASSERT_EQ(setenv("TIERKV_CACHE", folder.c_str(), 1), 0);
  const ModelShape shape = inspect(model.get()).value();
  const std::string made = calibration_path(shape), session = folder + "/session";
  EXPECT_EQ(made.find(folder + "/calibration/"), 0u) << made;
  CalibrateOptions options;
  options.tokens = 2200, options.window = 1100, options.sample_tokens = 1024, options.query_stride = 32, options.threads = 1;
  const auto report = calibrate(shape, {some_tokens(2200, 3)}, made, options);
  ASSERT_TRUE(report.ok()) << report.status().to_string();

  char error[300] = "";
  llama_context_params params = test_params(64);
  tierkv_llama* kv = tierkv_llama_attach(&params, model.get(), "hot=32,warm=64", error, sizeof(error));
  ASSERT_NE(kv, nullptr) << error;
  llama_context* context = llama_init_from_model(model.get(), params);
  auto tokens = some_tokens(500, 4);
  ASSERT_EQ(tierkv_llama_decode(kv, context, llama_batch_get_one(tokens.data(), 500)), 0) << tierkv_llama_error(kv);
  ASSERT_EQ(tierkv_llama_save(kv, 0, session.c_str()), 0) << tierkv_llama_error(kv);
  llama_free(context);
  tierkv_llama_free(kv);
  const auto info = inspect_snapshot(session, load_calibration(made).value());
  ASSERT_TRUE(info.ok()) << info.status().to_string();
  EXPECT_NE(std::find(info->codecs.begin(), info->codecs.end(), "klt1.875 x128"), info->codecs.end());

  // Not any file will do, and none is no error.
  ASSERT_EQ(std::system(("echo x > " + made).c_str()), 0);
  params = test_params(64);
  EXPECT_EQ(tierkv_llama_attach(&params, model.get(), "balanced", error, sizeof(error)), nullptr);
  EXPECT_NE(std::string(error).find("calibration"), std::string::npos) << error;
  std::filesystem::remove_all(folder);
  kv = tierkv_llama_attach(&params, model.get(), "balanced", error, sizeof(error));
  EXPECT_NE(kv, nullptr) << error;
  tierkv_llama_free(kv);
  unsetenv("TIERKV_CACHE");
}

TEST(LlamaC, FailureIsOneSentenceAndChangesNothing) {
  const ModelPtr served = load_tiny("llama"), refused = load_tiny("mamba");
  llama_context_params params = test_params(32);
  char error[200] = "";
  EXPECT_EQ(tierkv_llama_attach(&params, refused.get(), "fp16", error, sizeof(error)), nullptr);
  EXPECT_NE(std::string(error).find("recurrent"), std::string::npos) << error;
  EXPECT_EQ(tierkv_llama_attach(&params, served.get(), "no-such-preset", error, sizeof(error)), nullptr);
  EXPECT_NE(std::string(error).find("no-such-preset"), std::string::npos) << error;
  EXPECT_EQ(tierkv_llama_attach(&params, nullptr, "fp16", error, 1), nullptr);
  EXPECT_EQ(tierkv_llama_attach(nullptr, served.get(), "fp16", nullptr, 0), nullptr);
  EXPECT_EQ(params.cb_eval, nullptr);
  EXPECT_EQ(params.n_ctx, 32u);
  EXPECT_EQ(tierkv_llama_decode(nullptr, nullptr, llama_batch{}), -1);
  tierkv_llama_free(nullptr);
}

}  // namespace
}  // namespace tierkv::llama
