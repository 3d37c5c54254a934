// Tests of tierkv_llama_*: the three lines a libllama program adds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/folder_testing.h"
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

// A handler that gives up sequence 0, and tries what it may not do.
struct Presses {
  tierkv_llama* kv = nullptr;
  llama_context* context = nullptr;
  std::vector<tierkv_llama_pressure> seen;
  int32_t shortened = 0, copied = 0, decoded = 0;
};

int remove_the_first(void* user, const tierkv_llama_pressure* pressure) {
  auto& presses = *static_cast<Presses*>(user);
  presses.seen.push_back(*pressure);
  llama_token token = 1;
  presses.shortened = tierkv_llama_seq_rm(presses.kv, 1, 5);
  presses.copied = tierkv_llama_seq_cp(presses.kv, 0, 1);
  presses.decoded = tierkv_llama_decode(presses.kv, presses.context, llama_batch_get_one(&token, 1));
  return pressure->attempt == 0 && tierkv_llama_seq_rm(presses.kv, 0, 0) == 0;
}

TEST(LlamaC, APressureHandlerMakesRoomForTheSequenceThatGrows) {
  constexpr int kTokens = 400;
  const ModelPtr model = load_tiny("llama");
  llama_context_params params = test_params(32);
  params.n_seq_max = 2;
  params.n_threads = params.n_threads_batch = 2;
  const uint64_t one = 3ull * 2 * 32 * 4 * kTokens;  // 3 layers, 2 heads of 32, FP16
  const std::string spec = "fp16,byte_budget=" + std::to_string(one * 7 / 4);
  char error[200] = "";
  Presses presses;
  presses.kv = tierkv_llama_attach(&params, model.get(), spec.c_str(), error, sizeof(error));
  ASSERT_NE(presses.kv, nullptr) << error;
  tierkv_llama* kv = presses.kv;
  presses.context = llama_init_from_model(model.get(), params);
  const auto tokens = some_tokens(kTokens, 1);
  TestBatch first(kTokens), second(kTokens);
  for (int i = 0; i < kTokens; ++i) {
    first.add(tokens[static_cast<size_t>(i)], i, 0, false);
    second.add(tokens[static_cast<size_t>(i)], i, 1, i + 1 == kTokens);
  }
  ASSERT_EQ(tierkv_llama_decode(kv, presses.context, first.batch), 0) << tierkv_llama_error(kv);
  EXPECT_EQ(tierkv_llama_decode(kv, presses.context, second.batch), 1) << "without a handler";
  EXPECT_NE(std::string(tierkv_llama_error(kv)).find("byte_budget"), std::string::npos) << tierkv_llama_error(kv);

  ASSERT_EQ(tierkv_llama_set_pressure_handler(kv, remove_the_first, &presses), 0);
  ASSERT_EQ(tierkv_llama_decode(kv, presses.context, second.batch), 0) << tierkv_llama_error(kv);
  ASSERT_EQ(presses.seen.size(), 1u);
  EXPECT_EQ(presses.seen[0].size, sizeof(tierkv_llama_pressure));
  EXPECT_EQ(presses.seen[0].seq, 1);
  EXPECT_EQ(presses.seen[0].attempt, 0u);
  EXPECT_EQ(presses.seen[0].budget_bytes, one * 7 / 4);
  EXPECT_GT(presses.seen[0].needed_bytes, 0u);
  EXPECT_LE(presses.seen[0].used_bytes, presses.seen[0].budget_bytes);
  EXPECT_EQ(presses.shortened, 2) << "it is being decoded";
  EXPECT_EQ(presses.copied, 2);
  EXPECT_EQ(presses.decoded, 2);
  const float* row = tierkv_llama_logits(kv, presses.context, -1);
  ASSERT_NE(row, nullptr) << tierkv_llama_error(kv);
  EXPECT_LT(worst_difference({{row, row + 384}}, {stock_logits(model.get(), tokens, 32).back()}), 1e-3);

  ASSERT_EQ(tierkv_llama_set_pressure_handler(kv, nullptr, nullptr), 0);
  EXPECT_EQ(tierkv_llama_decode(kv, presses.context, first.batch), 1);
  EXPECT_EQ(presses.seen.size(), 1u);
  EXPECT_EQ(tierkv_llama_seq_park(kv, 0), -1) << "it is empty";
  EXPECT_EQ(tierkv_llama_seq_park(kv, 1), 2) << "there is no calibration";
  EXPECT_EQ(tierkv_llama_seq_wake(kv, 9), -1);
  llama_free(presses.context);
  tierkv_llama_free(kv);
}

TEST(LlamaC, SaysWhatTheArchiveIsAndWhy) {
  const TestFolder folder;
  ASSERT_EQ(setenv("TIERKV_CACHE", folder.path().c_str(), 1), 0);
  const ModelPtr model = load_tiny("llama");
  const auto describe = [&](const char* kv) {
    llama_context_params params = test_params(32);
    char error[200] = "";
    tierkv_llama* handle = tierkv_llama_attach(&params, model.get(), kv, error, sizeof error);
    EXPECT_NE(handle, nullptr) << error;
    std::string text(tierkv_llama_describe(handle, nullptr, 0), ' ');
    std::vector<char> buffer(text.size() + 1);
    EXPECT_EQ(tierkv_llama_describe(handle, buffer.data(), buffer.size()), text.size());
    tierkv_llama_free(handle);
    return std::string(buffer.data());
  };
  EXPECT_EQ(describe("balanced"), "learning this model: 0 of 8,192 tokens; older tokens wait at 4 bits");
  EXPECT_NE(describe("balanced,calibrate=off").find("not calibrated"), std::string::npos);
  EXPECT_EQ(describe("fp16"), "no archive");
  EXPECT_EQ(tierkv_llama_describe(nullptr, nullptr, 0), 0u);
  unsetenv("TIERKV_CACHE");
}

// Logits while it learns are those of the same tiers without learning: looking at the graph changes nothing.
TEST(LlamaC, LearningLeavesLogitsAlone) {
  const TestFolder folder;
  ASSERT_EQ(setenv("TIERKV_CACHE", folder.path().c_str(), 1), 0);
  const ModelPtr model = load_tiny("llama");
  auto tokens = some_tokens(200, 3);
  const auto last = [&](const char* kv) {
    llama_context_params params = test_params(64);
    tierkv_llama* handle = tierkv_llama_attach(&params, model.get(), kv, nullptr, 0);
    llama_context* context = llama_init_from_model(model.get(), params);
    EXPECT_EQ(tierkv_llama_decode(handle, context, llama_batch_get_one(tokens.data(), 200)), 0) << tierkv_llama_error(handle);
    const float* row = tierkv_llama_logits(handle, context, -1);
    std::vector<float> logits(row, row + 384);
    llama_free(context);
    tierkv_llama_free(handle);
    return logits;
  };
  EXPECT_EQ(last("balanced"), last("balanced,calibrate=off"));
  unsetenv("TIERKV_CACHE");
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
  EXPECT_EQ(tierkv_llama_seq_park(nullptr, 0), -1);
  EXPECT_EQ(tierkv_llama_seq_wake(nullptr, 0), -1);
  EXPECT_EQ(tierkv_llama_set_pressure_handler(nullptr, nullptr, nullptr), -1);
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
  const TestFolder folder;
  const std::string path = folder.file("session");
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
  llama_free(context);
  tierkv_llama_free(kv);
}

TEST(LlamaC, FindsTheCalibrationThatWasMade) {
  const ModelPtr model = load_tiny("llama");
  const TestFolder own;
  const std::string& folder = own.path();
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

  // A damaged one that nobody named is passed over, and said so. One that is named must be right. None is no error.
  ASSERT_EQ(std::system(("echo x > " + made).c_str()), 0);
  params = test_params(64);
  kv = tierkv_llama_attach(&params, model.get(), "balanced", error, sizeof(error));
  ASSERT_NE(kv, nullptr) << error;
  char sentence[500] = "";
  EXPECT_GT(tierkv_llama_describe(kv, sentence, sizeof(sentence)), 0u);
  EXPECT_NE(std::string(sentence).find("a calibration is not used"), std::string::npos) << sentence;
  tierkv_llama_free(kv);
  params = test_params(64);
  EXPECT_EQ(tierkv_llama_attach(&params, model.get(), ("balanced,calibration=" + made).c_str(), error, sizeof(error)), nullptr);
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
