// Tests of inspect(): what it finds in models that are served, and why it refuses the others.
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
