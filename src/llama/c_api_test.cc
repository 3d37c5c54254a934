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
