#include "engine/gguf_file.h"

#include <gtest/gtest.h>

namespace tierkv::engine {
namespace {

TEST(ModelTitle, AKnownModelIsCalledByWhatItIs) {
  EXPECT_EQ(model_title("renamed.gguf", "Smollm2 135M 8k Lc100K Mix1 Ep2"), "SmolLM2-135M-Instruct");
  EXPECT_EQ(model_title("models/gemma-3-270m-q4_k_m.gguf", "Gemma 3 270m"), "Gemma-3-270M");
}

TEST(ModelTitle, OthersByTheFileWithoutItsQuantization) {
  EXPECT_EQ(model_title("/models/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "x"), "Meta-Llama-3.1-8B-Instruct");
  EXPECT_EQ(model_title("qwen2.5-0.5b-instruct.IQ2_XXS.gguf", "x"), "qwen2.5-0.5b-instruct");
  EXPECT_EQ(model_title("phi-4-14b-bf16.gguf", "x"), "phi-4-14b");
  EXPECT_EQ(model_title("gpt-oss-20b-mxfp4.gguf", "x"), "gpt-oss-20b");
}

TEST(ModelTitle, AFileNameThatSaysNothingIsNotShown) {
  EXPECT_EQ(model_title("model.gguf", "Tiny Llama"), "Tiny Llama");
  EXPECT_EQ(model_title("ggml-model-q4_0.gguf", "Tiny Llama"), "Tiny Llama");
}

}  // namespace
}  // namespace tierkv::engine
