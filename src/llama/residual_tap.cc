#include "llama/residual_tap.h"

#include <ggml-backend.h>

#include <cmath>
#include <new>
#include <string_view>

namespace tierkv::llama {
namespace {

constexpr uint64_t kEnough = 1024;

}  // namespace

ResidualNodes residual_nodes(const ModelShape& shape) {
  ResidualNodes layer_of;
  for (uint32_t i = 0; i < shape.layers; ++i) {
    const int32_t number = shape.cache_layers[i];
    if (number > 0) {
      layer_of["l_out-" + std::to_string(number - 1)] = i;
    } else {
      layer_of["embd"] = layer_of["inp_scaled"] = i;  // the second comes after the first
    }
  }
  return layer_of;
}

ResidualTap::ResidualTap(const ModelShape& shape) : layer_of_(residual_nodes(shape)), layers_(shape.layers) {
  for (uint32_t i = 0; i < shape.layers; ++i) {
    if (i < shape.projections.size() && shape.projections[i].norm != nullptr) normed_[shape.projections[i].weight] = i;
  }
}

bool ResidualTap::wants(const ggml_tensor* node) const noexcept {
  if (node->op == GGML_OP_MUL_MAT && normed_.contains(node->src[0])) return true;
  return layer_of_.contains(std::string_view(ggml_get_name(node)));
}

template <class Add>
void ResidualTap::for_each_square(const ggml_tensor* node, const Add& add) {
  if (node->type != GGML_TYPE_F32 || node->ne[1] != rows_ || node->ne[2] != 1 || !ggml_is_contiguous(node)) return;
  row_.resize(static_cast<size_t>(node->ne[0]));
  for (int64_t t = 0; t < rows_; ++t) {
    ggml_backend_tensor_get(node, row_.data(), static_cast<size_t>(t) * node->nb[1], row_.size() * sizeof(float));
    double sum = 0.0;
    for (const float x : row_) sum += static_cast<double>(x) * x;
    if (std::isfinite(sum) && sum > 0.0) add(sum);
  }
}

void ResidualTap::read(const ggml_tensor* node) noexcept {
  try {
    if (const auto named = layer_of_.find(std::string_view(ggml_get_name(node))); named != layer_of_.end()) {
      Layer& layer = layers_[named->second];
      if (named->first == "inp_scaled") layer.inverse = 0.0, layer.tokens = 0;
      for_each_square(node, [&](double sum) { layer.inverse += 1.0 / sum, ++layer.tokens; });
    }
    if (node->op != GGML_OP_MUL_MAT) return;
    if (const auto found = normed_.find(node->src[0]); found != normed_.end()) {
      Layer& layer = layers_[found->second];
      for_each_square(node, [&](double sum) { layer.square += sum / static_cast<double>(node->ne[0]), ++layer.outputs; });
    }
  } catch (const std::bad_alloc&) {
    // It has seen less.
  }
}

bool ResidualTap::report(AdaptiveKVCache& cache) {
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    if (layer.tokens == 0) continue;
    const double scale = layer.outputs > 0 ? layer.square / static_cast<double>(layer.outputs) : 1.0;
    cache.set_residual(i, static_cast<double>(layer.tokens) / layer.inverse * scale);
  }
  seen_ += static_cast<uint64_t>(rows_);
  return seen_ >= kEnough;
}

}  // namespace tierkv::llama
