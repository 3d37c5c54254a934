// Tests of output_weights(): projections read from GGUF files, whatever their type.
#include "llama/output_weights.h"

#include <cmath>
#include <cstdio>

#include "base/folder_testing.h"
#include "llama/test_model.h"

namespace tierkv::llama {
namespace {

TEST(OutputWeights, AreTheSameForAQuantizedModelUpToItsError) {
  const ModelPtr model = load_tiny("llama");
  const auto shape = inspect(model.get());
  ASSERT_TRUE(shape.ok());
  const TestFolder folder;
  const std::string path = std::string(TIERKV_TINY_MODELS) + "/llama.gguf", other = folder.file("q8_0.gguf");
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = LLAMA_FTYPE_MOSTLY_Q8_0;
  params.nthread = 1;
  ASSERT_EQ(llama_model_quantize(path.c_str(), other.c_str(), &params), 0u);
  ThreadPool pool(2);
  const auto exact = output_weights(*shape, path, pool), quantized = output_weights(*shape, other, pool);
  const size_t dim = shape->head_dim;
  for (uint32_t layer = 0; layer < shape->layers; ++layer) {
    ASSERT_EQ(exact[layer].gram.size(), shape->heads * dim * dim);
    ASSERT_EQ(quantized[layer].gram.size(), exact[layer].gram.size());
    double difference = 0.0, size = 0.0, unequal = 0.0;
    for (size_t i = 0; i < exact[layer].gram.size(); ++i) {
      const size_t mirrored = i / (dim * dim) * dim * dim + i % dim * dim + i / dim % dim;
      difference += std::pow(exact[layer].gram[i] - quantized[layer].gram[i], 2);
      size += std::pow(exact[layer].gram[i], 2);
      unequal = std::max<double>(unequal, std::fabs(exact[layer].gram[i] - exact[layer].gram[mirrored]));
    }
    EXPECT_GT(difference, 0.0);
    EXPECT_LT(std::sqrt(difference / size), 0.02);
    EXPECT_EQ(unequal, 0.0);
    EXPECT_TRUE(exact[layer].projection.empty());
    EXPECT_EQ(exact[layer].scale(nullptr, 0), 1.0f);
  }
}

TEST(OutputWeights, AreKeptWholeWhereANormFollows) {
  const ModelPtr model = load_tiny("gemma3");
  const auto shape = inspect(model.get());
  ASSERT_TRUE(shape.ok());
  ThreadPool pool(1);
  const auto layers = output_weights(*shape, std::string(TIERKV_TINY_MODELS) + "/gemma3.gguf", pool);
  const size_t columns = static_cast<size_t>(shape->heads) * shape->head_dim;
  const OutputWeights& weights = layers[5];
  ASSERT_FALSE(weights.projection.empty());
  std::vector<float> out(columns, 0.0f);
  out[3] = 2.0f;
  double sum = 0.0;
  for (size_t row = 0; row < weights.projection.size(); row += columns) sum += 4.0 * std::pow(weights.projection[row + 3], 2);
  EXPECT_NEAR(weights.scale(out.data(), columns),
              sum * static_cast<double>(columns) / static_cast<double>(weights.projection.size()), 1e-5 * sum);
}

TEST(OutputWeights, AreEmptyWithoutTheFile) {
  const ModelPtr model = load_tiny("llama");
  const auto shape = inspect(model.get());
  ThreadPool pool(1);
  for (const char* path : {"", "/nowhere.gguf"}) {
    const auto layers = output_weights(*shape, path, pool);
    ASSERT_EQ(layers.size(), shape->layers);
    EXPECT_TRUE(layers[0].gram.empty());
  }
}

}  // namespace
}  // namespace tierkv::llama
