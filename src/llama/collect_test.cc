// Tests of collect() on tiny models: what comes of a text, and which texts are refused.
#include "llama/collect.h"

#include <cmath>
#include <numeric>

#include "llama/test_model.h"

namespace tierkv::llama {
namespace {

TokenList random_text(size_t count, uint32_t seed = 5) {
  const std::vector<llama_token> tokens = some_tokens(count, seed);
  return TokenList(tokens.begin(), tokens.end());
}

CalibrateOptions small_options() {
  CalibrateOptions options;
  options.window = 1100;
  options.sample_tokens = 500;
  options.query_stride = 64;
  options.threads = 2;
  options.micro_batch = 256;
  return options;
}

double trace(const std::vector<double>& matrix, uint32_t dim) {
  double sum = 0.0;
  for (uint32_t i = 0; i < dim; ++i) sum += matrix[i * dim + i];
  return sum;
}

TEST(CalibrationWindows, AreEquallyLongAndFromEveryTextInTurn) {
  CalibrateOptions options = small_options();
  TokenList a(5000), b(3000);
  std::iota(a.begin(), a.end(), 0);
  std::iota(b.begin(), b.end(), 100000);
  options.tokens = 4000;
  options.first_token = 7;
  const auto windows = calibration_windows({a, b}, 4096, options);
  ASSERT_TRUE(windows.ok()) << windows.status().to_string();
  ASSERT_EQ(windows->size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ((*windows)[i].size(), 1000u);
    EXPECT_EQ((*windows)[i][0], 7);
    EXPECT_EQ((*windows)[i][1] >= 100000, i % 2 == 1);
  }
  EXPECT_EQ((*windows)[2].back(), 4999);  // spread over the whole text
}

TEST(CalibrationWindows, RefuseWhatTeachesNothing) {
  const CalibrateOptions options = small_options();
  const auto why = [](const Result<std::vector<TokenList>>& windows) { return windows.status().message(); };
  EXPECT_NE(why(calibration_windows({random_text(2047)}, 4096, options)).find("2048"), std::string::npos);
  EXPECT_NE(why(calibration_windows({TokenList(3000, 17)}, 4096, options)).find("repeats 1 token"), std::string::npos);
  EXPECT_NE(why(calibration_windows({random_text(5000), random_text(100)}, 4096, options)).find("text 2 of 2"), std::string::npos);
  EXPECT_NE(why(calibration_windows({random_text(5000)}, 512, options)).find("context"), std::string::npos);
  CalibrateOptions wide = options;
  wide.block = 1000;
  EXPECT_FALSE(calibration_windows({random_text(5000)}, 4096, wide).ok());
  EXPECT_TRUE(calibration_windows({random_text(5000)}, 4096, options).ok());
}

TEST(Collect, TinyModelsGiveWholeStatistics) {
  for (const char* kind : {"llama", "gemma3", "gpt-oss"}) {
    const ModelPtr model = load_tiny(kind);
    const auto shape = inspect(model.get());
    ASSERT_TRUE(shape.ok());
    CalibrateOptions options = small_options();
    options.model_file = std::string(TIERKV_TINY_MODELS) + "/" + kind + ".gguf";
    uint64_t last = 0;
    options.progress = [&](const CalibrateProgress& at) { last = at.done; };
    const auto windows = calibration_windows({random_text(2200)}, shape->context, options);
    ASSERT_TRUE(windows.ok());
    const auto collected = collect(*shape, *windows, options);
    ASSERT_TRUE(collected.ok()) << collected.status().to_string();
    const calib::Statistics& statistics = collected->statistics;
    EXPECT_EQ(last, 2200u);
    EXPECT_EQ(statistics.tokens, 2200u);
    EXPECT_EQ(statistics.sampled(), 500u);
    EXPECT_EQ(statistics.model.fingerprint, shape->fingerprint);
    EXPECT_EQ(collected->without_residual, 0u) << kind;
    EXPECT_EQ(collected->without_projection, 0u) << kind;
    for (uint32_t i = 0; i < shape->layers; ++i) {
      for (uint32_t h = 0; h < shape->kv_heads; ++h) {
        const calib::PairSums& sums = statistics.pair_sums(i, h);
        const double size = trace(sums.key_block, shape->head_dim);
        EXPECT_TRUE(std::isfinite(size));
        EXPECT_EQ(size > 0.0, shape->window[i] == 0) << kind << " layer " << i;
        EXPECT_NEAR(trace(sums.key_plain, shape->head_dim), size, 1e-3 * size);
        EXPECT_EQ(trace(sums.value, shape->head_dim) > 0.0, shape->window[i] == 0);
      }
      double keys = 0.0;
      for (const uint16_t x : statistics.layers[i].keys) keys += x != 0;
      EXPECT_GT(keys, 0.9 * static_cast<double>(statistics.layers[i].keys.size()));
    }
  }
}

TEST(Collect, StopsWhenToldTo) {
  const ModelPtr model = load_tiny("llama");
  const auto shape = inspect(model.get());
  CalibrateOptions options = small_options();
  options.cancelled = [] { return true; };
  const auto windows = calibration_windows({random_text(2200)}, shape->context, options);
  EXPECT_EQ(collect(*shape, *windows, options).status().code(), StatusCode::failed_precondition);
}

}  // namespace
}  // namespace tierkv::llama
