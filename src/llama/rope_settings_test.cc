// Tests of models whose RoPE is stretched: what inspect() says of them, what attach() takes, and which calibration they get.
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "base/folder_testing.h"
#include "llama/test_model.h"
#include "tierkv/calibrate.h"

namespace tierkv::llama {
namespace {

llama_context_params stretched(uint32_t context, llama_rope_scaling_type type, float scale) {
  llama_context_params params = test_params(context);
  params.rope_scaling_type = type;
  params.rope_freq_scale = scale;
  return params;
}

constexpr auto kLinear = LLAMA_ROPE_SCALING_TYPE_LINEAR;
constexpr auto kYarn = LLAMA_ROPE_SCALING_TYPE_YARN;

TEST(RopeSettings, GoThroughParamsAndSayWhatIsSet) {
  EXPECT_EQ(RopeSettings::of(llama_context_default_params()), RopeSettings());
  EXPECT_EQ(RopeSettings().text(), "");
  llama_context_params params = stretched(64, kYarn, 0.25f);
  params.rope_freq_base = 5e5f;
  params.yarn_orig_ctx = 2048;
  params.yarn_ext_factor = 0.5f;
  params.yarn_attn_factor = 1.5f;
  params.yarn_beta_fast = 16.0f;
  params.yarn_beta_slow = 2.0f;
  const RopeSettings settings = RopeSettings::of(params);
  EXPECT_EQ(settings.text(),
            "--rope-scaling yarn --rope-freq-base 500000 --rope-freq-scale 0.25 --yarn-orig-ctx 2048 --yarn-ext-factor 0.5 "
            "--yarn-attn-factor 1.5 --yarn-beta-slow 2 --yarn-beta-fast 16");
  llama_context_params again = llama_context_default_params();
  settings.apply(again);
  EXPECT_EQ(RopeSettings::of(again), settings);
}

TEST(Stretched, InspectReadsTheRopeThatTheContextHas) {
  const ModelPtr model = load_tiny("llama");
  const auto own = inspect(model.get());
  const auto linear = inspect(model.get(), stretched(64, kLinear, 0.25f));
  const auto yarn = inspect(model.get(), stretched(64, kYarn, 0.25f));
  llama_context_params base = test_params(64);
  base.rope_freq_base = 1e6f;
  const auto slower = inspect(model.get(), base);
  ASSERT_TRUE(own.ok() && linear.ok() && yarn.ok() && slower.ok());
  EXPECT_TRUE(own->own_ropes);
  EXPECT_FALSE(linear->own_ropes || yarn->own_ropes || slower->own_ropes);
  ASSERT_EQ(yarn->ropes.size(), own->ropes.size());
  const size_t pairs = own->ropes[0].size();
  for (size_t p = 0; p < pairs; ++p) {
    const double angle = own->ropes[0][p].angle;
    EXPECT_NEAR(linear->ropes[0][p].angle, angle / 4, 1e-5 * angle);
    EXPECT_LE(yarn->ropes[0][p].angle, angle * 1.00001);
    EXPECT_GE(yarn->ropes[0][p].angle, angle / 4 * 0.99999);
  }
  // YaRN leaves what turns often and stretches what does not come round.
  EXPECT_NEAR(yarn->ropes[0][0].angle, own->ropes[0][0].angle, 1e-5);
  EXPECT_NEAR(yarn->ropes[0][pairs - 1].angle, own->ropes[0][pairs - 1].angle / 4, 1e-8);
  // Four times slower, four times as far. A hundred times the base is 100^(15/16) for sixteen pairs.
  EXPECT_EQ(own->context, 4096u);
  EXPECT_EQ(linear->context, 16384u);
  EXPECT_EQ(yarn->context, 16384u);
  EXPECT_NEAR(slower->context, 4096.0 * std::pow(100.0, 15.0 / 16.0), 8.0);
  EXPECT_EQ(inspect(model.get(), stretched(64, kLinear, 2.0f))->context, 2048u);
  // libllama has changed its own number of the context meanwhile.
  EXPECT_EQ(inspect(model.get())->context, 4096u);
  // One model: what is known of its weights holds, and its snapshots are not the others'.
  EXPECT_EQ(yarn->fingerprint, own->fingerprint);
  EXPECT_NE(yarn->name, own->name);
  EXPECT_NE(yarn->name, linear->name);
  EXPECT_NE(calibration_path(*yarn), calibration_path(*own));
  EXPECT_NE(calibration_path(*yarn), calibration_path(*linear));
}

TEST(Stretched, SettingsThatChangeNothingLeaveTheModelAsItIs) {
  const ModelPtr model = load_tiny("qwen2");
  llama_context_params params = stretched(64, LLAMA_ROPE_SCALING_TYPE_NONE, 0.0f);
  params.rope_freq_base = 10000.0f;  // as the file has it
  const auto own = inspect(model.get()), same = inspect(model.get(), params);
  ASSERT_TRUE(own.ok() && same.ok());
  EXPECT_TRUE(same->own_ropes);
  EXPECT_EQ(same->name, own->name);
  EXPECT_EQ(same->context, own->context);
  EXPECT_EQ(calibration_path(*same), calibration_path(*own));
  // Longer keys turn as before, and are not those of a snapshot all the same.
  params.yarn_attn_factor = 1.5f;
  const auto longer = inspect(model.get(), params);
  ASSERT_TRUE(longer.ok());
  EXPECT_TRUE(longer->own_ropes);
  EXPECT_NE(longer->name, own->name);
}

TEST(Stretched, SlidingLayersKeepTheirOwn) {
  const ModelPtr model = load_tiny("gemma3");
  const auto own = inspect(model.get()), linear = inspect(model.get(), stretched(64, kLinear, 0.125f));
  ASSERT_TRUE(own.ok() && linear.ok());
  for (uint32_t l = 0; l < own->layers; ++l) {
    EXPECT_EQ(own->ropes[l] == linear->ropes[l], own->window[l] != 0) << "layer " << l;
  }
  EXPECT_EQ(linear->context, 8 * own->context);
}

class StretchedHost : public testing::TestWithParam<llama_rope_scaling_type> {};

TEST_P(StretchedHost, LogitsAgreeWithStock) {
  const ModelPtr model = load_tiny("llama");
  const auto tokens = some_tokens(150, 3);
  llama_context_params params = stretched(150, GetParam(), 0.25f);
  llama_context_params theirs = params;
  theirs.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  const ContextPtr stock(llama_init_from_model(model.get(), theirs), llama_free);
  const Logits expected =
      all_logits(stock.get(), tokens, 32, [&](const llama_batch& batch) { ASSERT_EQ(llama_decode(stock.get(), batch), 0); });
  const auto shape = inspect(model.get(), params);
  ASSERT_TRUE(shape.ok());
  CacheConfig config = fp16_config();
  shape->apply(config);
  auto cache = AdaptiveKVCache::create(config).value();
  auto host = Host::attach(params, *shape, *cache);
  ASSERT_TRUE(host.ok()) << host.status().to_string();
  EXPECT_EQ(params.rope_scaling_type, GetParam());
  const ContextPtr context(llama_init_from_model(model.get(), params), llama_free);
  const Logits ours = all_logits(context.get(), tokens, 17,
                                 [&](const llama_batch& batch) { ASSERT_TRUE((*host)->decode(context.get(), batch).ok()); });
  EXPECT_LT(worst_difference(ours, expected), 1e-3);
  EXPECT_GT(worst_difference(ours, stock_logits(model.get(), tokens, 32)), 1e-2);  // the settings do something
}

INSTANTIATE_TEST_SUITE_P(Kinds, StretchedHost, testing::Values(kLinear, kYarn));

TEST(Stretched, AttachRefusesParamsOfAnotherRope) {
  const ModelPtr model = load_tiny("llama");
  const ModelShape own = inspect(model.get()).value();
  CacheConfig config = fp16_config();
  own.apply(config);
  auto cache = AdaptiveKVCache::create(config).value();
  llama_context_params params = stretched(64, kYarn, 0.25f);
  const Status status = Host::attach(params, own, *cache).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  for (const char* part : {"--rope-scaling yarn --rope-freq-scale 0.25", "the model's own RoPE", "channels", "inspect()"})
    EXPECT_NE(status.message().find(part), std::string::npos) << part << " in " << status.message();
  EXPECT_EQ(params.cb_eval, nullptr);
  EXPECT_EQ(params.n_ctx, 64u);
  // The same in other words is no other.
  llama_context_params same = test_params(64);
  same.rope_freq_base = 10000.0f;
  EXPECT_TRUE(Host::attach(same, own, *cache).ok());
}

// A folder with a calibration of the tiny model as it is.
class StretchedCalibration : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(setenv("TIERKV_CACHE", folder_.path().c_str(), 1), 0);
    std::filesystem::create_directories(folder_.path() + "/calibration");
    own_ = inspect(model_.get()).value();
    yarn_ = inspect(model_.get(), stretched(64, kYarn, 0.25f)).value();
    make(own_, calibration_path(own_));
  }
  void TearDown() override { unsetenv("TIERKV_CACHE"); }

  void make(const ModelShape& shape, const std::string& path) {
    CalibrateOptions options;
    options.tokens = 2200, options.window = 1100, options.sample_tokens = 1024, options.query_stride = 32, options.threads = 1;
    const auto report = calibrate(shape, {some_tokens(2200, 3)}, path, options);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
  }
  CacheConfig tiered() const {
    CacheConfig config;
    EXPECT_TRUE(apply_spec("hot=32,warm=64,archive=klt1.875", config).ok());
    yarn_.apply(config);
    return config;
  }

  TestFolder folder_;
  ModelPtr model_ = load_tiny("llama");
  ModelShape own_, yarn_;
};

TEST_F(StretchedCalibration, TheModelsOwnComesWithTheStretchedRopes) {
  std::string note;
  const CalibrationPtr plain = find_calibration(own_, CacheConfig{}, &note).value();
  ASSERT_NE(plain, nullptr);
  EXPECT_EQ(note, "");
  const CalibrationPtr copy = find_calibration(yarn_, CacheConfig{}, &note).value();
  ASSERT_NE(copy, nullptr);
  EXPECT_NE(note.find("tierkv calibrate --rope-scaling yarn --rope-freq-scale 0.25"), std::string::npos) << note;
  EXPECT_NE(describe(*copy).id, describe(*plain).id);
  EXPECT_TRUE(check_fit(*copy, yarn_.identity()).ok());
  // A file that is named is treated alike.
  CacheConfig named;
  named.calibration = calibration_path(own_);
  EXPECT_EQ(describe(*find_calibration(yarn_, named).value()).id, describe(*copy).id);
}

TEST_F(StretchedCalibration, OneMadeWithTheStretchedRopeGoesBeforeIt) {
  make(yarn_, calibration_path(yarn_));
  std::string note;
  const CalibrationPtr made = find_calibration(yarn_, CacheConfig{}, &note).value();
  EXPECT_EQ(describe(*made).id, describe(*load_calibration(calibration_path(yarn_)).value()).id);
  EXPECT_EQ(note, "");
  EXPECT_TRUE(check_fit(*made, yarn_.identity()).ok());
  EXPECT_FALSE(check_fit(*made, own_.identity()).ok());
  EXPECT_EQ(describe(*find_calibration(own_, CacheConfig{}).value()).id,
            describe(*load_calibration(calibration_path(own_)).value()).id);
}

TEST_F(StretchedCalibration, AttachRefusesOneOfAnotherRopeAndTakesTheCopy) {
  const CalibrationPtr plain = load_calibration(calibration_path(own_)).value();
  auto wrong = AdaptiveKVCache::create(tiered(), plain).value();
  llama_context_params params = stretched(64, kYarn, 0.25f);
  const Status status = Host::attach(params, yarn_, *wrong).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  for (const char* part : {"another RoPE", "channels", "with_ropes()"})
    EXPECT_NE(status.message().find(part), std::string::npos) << part << " in " << status.message();
  EXPECT_EQ(params.cb_eval, nullptr);

  auto right = AdaptiveKVCache::create(tiered(), find_calibration(yarn_, CacheConfig{}).value()).value();
  auto host = Host::attach(params, yarn_, *right);
  ASSERT_TRUE(host.ok()) << host.status().to_string();
  const ContextPtr context(llama_init_from_model(model_.get(), params), llama_free);
  auto tokens = some_tokens(600, 5);
  ASSERT_TRUE((*host)->decode(context.get(), llama_batch_get_one(tokens.data(), 600)).ok());
  EXPECT_GT(right->memory_usage().tier[static_cast<int>(Tier::archive)].tokens, 0u);
}

TEST_F(StretchedCalibration, CProgramsGetItByAttaching) {
  char error[400] = "", sentence[600] = "";
  llama_context_params params = stretched(64, kYarn, 0.25f);
  tierkv_llama* kv = tierkv_llama_attach(&params, model_.get(), "hot=32,warm=64", error, sizeof(error));
  ASSERT_NE(kv, nullptr) << error;
  EXPECT_GT(tierkv_llama_describe(kv, sentence, sizeof(sentence)), 0u);
  EXPECT_NE(std::string(sentence).find("another RoPE"), std::string::npos) << sentence;
  llama_context* context = llama_init_from_model(model_.get(), params);
  auto tokens = some_tokens(300, 4);
  EXPECT_EQ(tierkv_llama_decode(kv, context, llama_batch_get_one(tokens.data(), 300)), 0) << tierkv_llama_error(kv);
  llama_free(context);
  tierkv_llama_free(kv);
}

}  // namespace
}  // namespace tierkv::llama
