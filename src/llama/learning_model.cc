// learning_model.cc — what a host knows of a model, for a cache that learns it: the Gram matrices of output projections, read from
// the weights that libllama's graph has in memory (output_weights.h says what they are; here no file is needed).
#include <ggml.h>

#include <algorithm>

#include "base/guarded.h"
#include "tierkv/llama.h"

namespace tierkv::llama {
namespace {

// An archive begins this far behind a query at least: a window no longer than that has none to learn for.
constexpr uint32_t kArchiveDistance = 512;
// Rows of a projection that are looked at: of a large model's every n-th, which tells the same.
constexpr int64_t kMostRows = 1024;

// One row as floats; false: ggml cannot say.
bool widen_row(const ggml_tensor* weight, int64_t row, std::vector<float>& out) {
  const auto* bytes = static_cast<const char*>(weight->data) + static_cast<size_t>(row) * weight->nb[1];
  if (weight->type == GGML_TYPE_F32) {
    std::copy_n(reinterpret_cast<const float*>(bytes), out.size(), out.data());
    return true;
  }
  const ggml_to_float_t to_float = ggml_get_type_traits(weight->type)->to_float;
  if (to_float == nullptr) return false;
  to_float(bytes, out.data(), static_cast<int64_t>(out.size()));
  return true;
}

// G += x x' of every head.
void add_outer(const std::vector<float>& row, uint32_t dim, float* grams) {
  for (size_t first = 0; first < row.size(); first += dim) {
    const float* x = row.data() + first;
    float* gram = grams + first * dim;
    for (uint32_t i = 0; i < dim; ++i) {
      const float scale = x[i];
      float* out = gram + static_cast<size_t>(i) * dim;
      for (uint32_t j = 0; j < dim; ++j) out[j] += scale * x[j];
    }
  }
}

// [heads][head_dim][head_dim]; empty: the weights are not there, or not of that width.
std::vector<float> gram_of(const ModelShape& shape, const ModelShape::Projection& projection) {
  const ggml_tensor* weight = projection.weight;
  const size_t columns = static_cast<size_t>(shape.heads) * shape.head_dim;
  if (weight == nullptr || weight->data == nullptr || weight->ne[0] != static_cast<int64_t>(columns)) return {};
  const bool normed = projection.norm != nullptr && projection.norm->data != nullptr && projection.norm->ne[0] == weight->ne[1];
  std::vector<float> gram(columns * shape.head_dim, 0.0f), row(columns);
  const int64_t stride = std::max<int64_t>(1, (weight->ne[1] + kMostRows - 1) / kMostRows);
  for (int64_t r = 0; r < weight->ne[1]; r += stride) {
    if (!widen_row(weight, r, row)) return {};
    if (normed) {
      const float scale = static_cast<const float*>(projection.norm->data)[r];
      for (float& x : row) x *= scale;
    }
    add_outer(row, shape.head_dim, gram.data());
  }
  for (float& x : gram) x *= static_cast<float>(stride);
  return gram;
}

}  // namespace

Result<LearningModel> learning_model(const ModelShape& shape) try {
  LearningModel model;
  model.name = shape.name;
  model.fingerprint = shape.fingerprint;
  model.ropes = shape.ropes;
  model.grams.resize(shape.layers);
  for (uint32_t l = 0; l < shape.layers && l < shape.projections.size(); ++l) {
    if (shape.window[l] == 0 || shape.window[l] > kArchiveDistance) model.grams[l] = gram_of(shape, shape.projections[l]);
  }
  return model;
}
TIERKV_NO_MEMORY("read a model's output projections")

}  // namespace tierkv::llama
