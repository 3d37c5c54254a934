// Tests of inspect(): what it finds in models that are served, and why it refuses the others.
#include <cmath>
#include <cstdio>

#include "base/folder_testing.h"
#include "llama/test_model.h"

namespace tierkv::llama {
namespace {

TEST(Inspect, FindsShapeAndWindows) {
  const ModelPtr model = load_tiny("gemma3");
  const auto shape = inspect(model.get());
  ASSERT_TRUE(shape.ok()) << shape.status().to_string();
  EXPECT_EQ(shape->architecture, "gemma3");
  EXPECT_EQ(shape->name.rfind("tiny gemma3 (gemma3, ", 0), 0u) << shape->name;
  EXPECT_EQ(shape->layers, 7u);
  EXPECT_EQ(shape->heads, 2u);
  EXPECT_EQ(shape->kv_heads, 1u);
  EXPECT_EQ(shape->head_dim, 256u);  // not embedding / heads, which is 32
  EXPECT_EQ(shape->context, 4096u);
  EXPECT_EQ(shape->window, (std::vector<uint32_t>{40, 40, 40, 40, 40, 0, 40}));
  CacheConfig config = fp16_config();
  shape->apply(config);
  for (uint32_t i = 0; i < 7; ++i) EXPECT_EQ(config.layer(i).window, shape->window[i]) << "layer " << i;
}

TEST(Inspect, FindsAlternatingWindowsAndSoftcap) {
  const ModelPtr model = load_tiny("gemma2");
  const auto shape = inspect(model.get());
  ASSERT_TRUE(shape.ok()) << shape.status().to_string();
  EXPECT_EQ(shape->window, (std::vector<uint32_t>{48, 0, 48, 0}));
  EXPECT_FLOAT_EQ(shape->softcap, 3.0f);
}

TEST(Inspect, FullAttentionHasNoWindows) {
  for (const char* kind : {"llama", "qwen2", "qwen3", "phi3"}) {
    const ModelPtr model = load_tiny(kind);
    const auto shape = inspect(model.get());
    ASSERT_TRUE(shape.ok()) << shape.status().to_string();
    EXPECT_EQ(shape->window, std::vector<uint32_t>(3, 0)) << kind;
  }
}

TEST(Inspect, FindsRopeInTheModelsOrder) {
  const ModelPtr llama = load_tiny("llama"), qwen2 = load_tiny("qwen2"), gemma3 = load_tiny("gemma3");
  const auto interleaved = inspect(llama.get()), halves = inspect(qwen2.get()), two = inspect(gemma3.get());
  ASSERT_TRUE(interleaved.ok() && halves.ok() && two.ok());
  ASSERT_EQ(interleaved->ropes.size(), 3u);
  const auto expect_pair = [](const calib::RopePair& pair, int a, int b, int p, uint32_t pairs) {
    const double angle = std::pow(10000.0, -static_cast<double>(p) / pairs);
    EXPECT_EQ(pair.a, a);
    EXPECT_EQ(pair.b, b);
    EXPECT_NEAR(pair.angle, angle, 1e-5 * angle);
  };
  for (int p = 0; p < 16; ++p) {
    expect_pair(interleaved->ropes[2][p], 2 * p, 2 * p + 1, p, 16);
    expect_pair(halves->ropes[2][p], p, p + 32, p, 32);
  }
  // Sliding layers of Gemma 3 turn faster than the global one.
  ASSERT_EQ(two->ropes.size(), 7u);
  EXPECT_EQ(two->ropes[0].size(), 128u);
  EXPECT_EQ(two->ropes[0], two->ropes[4]);
}

TEST(Inspect, FingerprintIsOfTheModelNotOfItsQuantization) {
  const ModelPtr llama = load_tiny("llama"), again = load_tiny("llama"), qwen2 = load_tiny("qwen2");
  const uint64_t fingerprint = inspect(llama.get())->fingerprint;
  EXPECT_NE(fingerprint, 0u);
  EXPECT_EQ(inspect(again.get())->fingerprint, fingerprint);
  EXPECT_NE(inspect(qwen2.get())->fingerprint, fingerprint);
  const TestFolder folder;
  const std::string path = folder.file("q8_0.gguf");
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = LLAMA_FTYPE_MOSTLY_Q8_0;
  params.nthread = 1;
  ASSERT_EQ(llama_model_quantize((std::string(TIERKV_TINY_MODELS) + "/llama.gguf").c_str(), path.c_str(), &params), 0u);
  const ModelPtr quantized = load_model(path);
  ASSERT_NE(quantized, nullptr);
  EXPECT_NE(llama_model_size(quantized.get()), llama_model_size(llama.get()));
  EXPECT_EQ(inspect(quantized.get())->fingerprint, fingerprint);
}

TEST(Inspect, RefusesByName) {
  const std::pair<const char*, const char*> kinds[] = {
      {"bloom", "ALiBi"}, {"mamba", "recurrent"}, {"lfm2", "hybrid"}, {"deepseek2", "MLA"}};
  for (const auto& [kind, why] : kinds) {
    const ModelPtr model = load_tiny(kind);
    ASSERT_NE(model, nullptr) << kind;
    const Status status = inspect(model.get()).status();
    EXPECT_EQ(status.code(), StatusCode::unsupported) << kind;
    EXPECT_NE(status.message().find(kind), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  }
  EXPECT_EQ(inspect(nullptr).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace tierkv::llama
