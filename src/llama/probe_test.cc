// Tests of probing: what weights come of which effects, and what comes of a tiny model one of whose layers reaches nothing.
#include "llama/probe.h"

#include <gguf.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/folder_testing.h"
#include "calib/calibration.h"
#include "llama/test_model.h"
#include "solve/testing.h"

namespace tierkv::llama {
namespace {

double geometric_mean(const LayerWeights& weights) {
  double logs = 0.0;
  for (const double w : weights.keys) logs += std::log(w);
  for (const double w : weights.values) logs += std::log(w);
  return std::exp(logs / static_cast<double>(weights.keys.size() + weights.values.size()));
}

ProbeEffects effects_of(std::vector<double> keys, double error, double floor = 0.004) {
  ProbeEffects effects;
  for (const double k : keys) effects.keys.push_back({floor + k, error, floor, 0.1 * error, 2.0});
  effects.values.assign(keys.size(), {floor + 0.02, error, floor, 0.1 * error, 2.0});
  return effects;
}

TEST(ProbeWeights, AreOneWhereEffectsAreAsPredicted) {
  const LayerWeights weights = weights_of(effects_of({0.02, 0.02, 0.02}, 0.001));
  for (const double w : weights.keys) EXPECT_NEAR(w, 1.0, 1e-9);
  for (const double w : weights.values) EXPECT_NEAR(w, 1.0, 1e-9);
}

TEST(ProbeWeights, FollowEffectsThatStandOut) {
  const LayerWeights weights = weights_of(effects_of({0.02, 0.04, 0.01}, 0.0005));
  EXPECT_NEAR(weights.keys[1] / weights.keys[0], 2.0, 0.1);
  EXPECT_NEAR(weights.keys[2] / weights.keys[0], 0.5, 0.1);
  EXPECT_NEAR(geometric_mean(weights), 1.0, 1e-9);
}

TEST(ProbeWeights, AreDrawnTowardsOneByNoise) {
  const std::vector<double> keys = {0.02, 0.04, 0.01, 0.02};
  const auto spread = [&](double error) {
    const LayerWeights weights = weights_of(effects_of(keys, error));
    return weights.keys[1] / weights.keys[2];
  };
  EXPECT_GT(spread(0.0005), spread(0.005));
  EXPECT_GT(spread(0.005), 1.0);
  for (const double w : weights_of(effects_of(keys, 0.2)).keys) EXPECT_EQ(w, 1.0) << "nothing stands out of so much noise";
}

TEST(ProbeWeights, AreBoundedAndLeaveOutWhatWasNotProbed) {
  ProbeEffects effects = effects_of({5.0, 0.02, 0.0, 0.02}, 1e-5);
  effects.keys[3] = {};
  const LayerWeights weights = weights_of(effects);
  EXPECT_EQ(weights.keys[3], 1.0);
  for (const double w : weights.keys) EXPECT_TRUE(std::isfinite(w) && w > 0.0);
  EXPECT_LE(weights.keys[0] / weights.keys[2], kMostWeight * kMostWeight * 1.0001);
  EXPECT_NEAR(geometric_mean(weights), 1.0, 1e-9);
  for (const double w : weights_of(ProbeEffects{std::vector<ProbeEffect>(2), std::vector<ProbeEffect>(2)}).keys) EXPECT_EQ(w, 1.0);
}

TEST(ProbeWeights, MoveBitsToTheLayerThatMatters) {
  calib::KltTables tables = *solve::klt_calibration(calib::SyntheticModel({}).statistics()).value()->klt;
  const auto words = [&](uint32_t layer) {
    uint32_t sum = 0;
    const auto choices = tables.allocate(1.5, true);
    for (uint32_t h = 0; h < tables.kv_heads; ++h) sum += choices[layer * tables.kv_heads + h].keys.total();
    return sum;
  };
  ASSERT_GE(tables.layers, 2u);
  const uint32_t before = words(0);
  std::vector<double> keys(tables.layers, 1.0), values(tables.layers, 1.0);
  tables.weigh(keys, values);
  EXPECT_EQ(words(0), before);
  keys[0] = 16.0;
  tables.weigh(keys, values);
  EXPECT_GT(words(0), before);
}

// --- a whole calibration

class ProbeTest : public testing::Test {
 protected:
  std::string path(const std::string& name) { return folder_.file(name); }

  // The tiny llama, whose layer 1 adds nothing to the residual stream by attention.
  std::string model_with_idle_layer() {
    const std::string from = std::string(TIERKV_TINY_MODELS) + "/llama.gguf", to = path("idle.gguf");
    std::ifstream in(from, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const std::unique_ptr<gguf_context, void (*)(gguf_context*)> gguf(gguf_init_from_file(from.c_str(), {true, nullptr}),
                                                                      gguf_free);
    const int64_t id = gguf_find_tensor(gguf.get(), "blk.1.attn_output.weight");
    EXPECT_GE(id, 0);
    std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(gguf_get_data_offset(gguf.get()) + gguf_get_tensor_offset(gguf.get(), id)),
                gguf_get_tensor_size(gguf.get(), id), '\0');
    std::ofstream(to, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return to;
  }

  CalibrateOptions options() {
    CalibrateOptions options;
    options.window = 1100;
    options.sample_tokens = 1024;
    options.query_stride = 64;
    options.threads = 1;
    options.micro_batch = 256;
    options.probe_tokens = 128;
    return options;
  }

  Result<CalibrateReport> calibrate_model(const std::string& model_path, const std::string& name, const CalibrateOptions& options) {
    const ModelPtr model = load_model(model_path);
    const auto shape = inspect(model.get());
    EXPECT_TRUE(shape.ok());
    const std::vector<llama_token> tokens = some_tokens(2200, 5);
    return calibrate(*shape, {TokenList(tokens.begin(), tokens.end())}, path(name), options);
  }

  std::string read(const std::string& name) {
    std::ifstream in(path(name), std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  }

  const TestFolder folder_;
};

TEST_F(ProbeTest, ALayerThatReachesNothingWeighsLeast) {
  CalibrateOptions with = options();
  with.probe = true;
  const auto report = calibrate_model(model_with_idle_layer(), "idle.tkc", with);  // without its file the tables cannot know
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  const LayerWeights weights{report->key_weights, report->value_weights};
  ASSERT_EQ(weights.keys.size(), 3u);
  ASSERT_EQ(weights.values.size(), 3u);
  EXPECT_NEAR(geometric_mean(weights), 1.0, 1e-9);
  for (const uint32_t l : {0u, 2u}) {
    EXPECT_LT(weights.keys[1], std::min(weights.keys[l], weights.values[l])) << "layer " << l;
    EXPECT_LT(weights.values[1], std::min(weights.keys[l], weights.values[l])) << "layer " << l;
    EXPECT_GT(report->key_divergence[l], report->floor_divergence[l]);
  }
  EXPECT_EQ(report->key_divergence[1], 0.0);
  EXPECT_TRUE(load_calibration(path("idle.tkc")).ok());
}

TEST_F(ProbeTest, ChangesNothingButDistortionsAndNothingAtAllUnasked) {
  const std::string model = std::string(TIERKV_TINY_MODELS) + "/llama.gguf";
  CalibrateOptions without = options(), with = options();
  with.probe = true;
  const auto plain = calibrate_model(model, "plain.tkc", without);
  ASSERT_TRUE(plain.ok());
  EXPECT_TRUE(plain->key_weights.empty());
  without.probe_tokens = 99;
  ASSERT_TRUE(calibrate_model(model, "again.tkc", without).ok());
  const auto probed = calibrate_model(model, "probed.tkc", with);
  ASSERT_TRUE(probed.ok()) << probed.status().to_string();
  EXPECT_EQ(read("plain.tkc"), read("again.tkc"));
  EXPECT_NE(plain->id, probed->id);

  // The plain tables, weighed by what was reported, are the probed ones.
  const auto a = load_calibration(path("plain.tkc")), b = load_calibration(path("probed.tkc"));
  ASSERT_TRUE(a.ok() && b.ok());
  calib::KltTables weighed = *(*a)->klt_tables().value();
  weighed.weigh(probed->key_weights, probed->value_weights);
  ByteWriter expected, found;
  weighed.write(expected);
  (*b)->klt_tables().value()->write(found);
  EXPECT_EQ(expected.bytes(), found.bytes());
}

TEST_F(ProbeTest, LeavesLayersWithoutAnArchiveAlone) {
  CalibrateOptions with = options();
  with.probe = true;
  const std::string model = std::string(TIERKV_TINY_MODELS) + "/gemma3.gguf";
  const auto report = calibrate_model(model, "gemma3.tkc", with);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  const ModelPtr loaded = load_model(model);
  const auto shape = inspect(loaded.get());
  bool windowed = false;
  for (uint32_t l = 0; l < shape->layers; ++l) {
    windowed |= shape->window[l] != 0;
    EXPECT_TRUE(std::isfinite(report->key_weights[l]) && report->key_weights[l] > 0.0);
    if (shape->window[l] == 0) continue;
    EXPECT_EQ(report->key_weights[l], 1.0);
    EXPECT_EQ(report->value_weights[l], 1.0);
  }
  EXPECT_TRUE(windowed);
}

TEST_F(ProbeTest, StopsWhenToldToAndWritesNothing) {
  CalibrateOptions with = options();
  with.probe = true;
  bool probing = false;
  with.progress = [&](const CalibrateProgress& at) { probing |= std::string(at.phase) == "probing" && at.done == 2; };
  with.cancelled = [&] { return probing; };
  const auto report = calibrate_model(std::string(TIERKV_TINY_MODELS) + "/llama.gguf", "stopped.tkc", with);
  EXPECT_EQ(report.status().code(), StatusCode::failed_precondition);
  EXPECT_TRUE(probing);
  EXPECT_FALSE(std::filesystem::exists(path("stopped.tkc")));
}

TEST_F(ProbeTest, TakesAsManyTokensAsThereAre) {
  CalibrateOptions with = options();
  with.probe = true;
  with.probe_tokens = 100000;
  const auto report = calibrate_model(std::string(TIERKV_TINY_MODELS) + "/llama.gguf", "all.tkc", with);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  for (const double w : report->key_weights) EXPECT_TRUE(std::isfinite(w) && w > 0.0);
}

}  // namespace
}  // namespace tierkv::llama
