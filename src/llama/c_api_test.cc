// Tests of tierkv_llama_*: the three lines a libllama program adds.
#include <cstdio>

#include "llama/test_model.h"

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
