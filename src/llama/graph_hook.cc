#include "llama/graph_hook.h"

#include <cstring>
#include <utility>

#include "base/guarded.h"
#include "base/status_macros.h"

namespace tierkv::llama {

GraphHook::GraphHook(const ModelShape& shape, LayerServer& server) : server_(server), layers_(shape.layers) {
  for (uint32_t i = 0; i < shape.layers; ++i) {
    layers_[i].server = &server;
    layers_[i].index = i;
    layer_index_[shape.cache_layers[i]] = i;
  }
  prepare_patches();
}

void GraphHook::install(llama_context_params& params, Path path) {
  path_ = path;
  next_eval_ = std::exchange(params.cb_eval, on_node);
  next_eval_data_ = std::exchange(params.cb_eval_user_data, this);
  next_abort_ = std::exchange(params.abort_callback, on_abort);
  next_abort_data_ = std::exchange(params.abort_callback_data, this);
}

void GraphHook::custom_op(ggml_tensor* node, int ith, int nth, void* user) {
  const auto& layer = *static_cast<const Layer*>(user);
  layer.server->serve(layer.index, node, layer.stock, ith, nth);
}

void GraphHook::prepare_patches() {
  ggml_init_params init{};
  init.mem_size = ggml_tensor_overhead() * (layers_.size() + 1) + 1024;
  init.no_alloc = true;
  ggml_context* scratch = ggml_init(init);
  for (Layer& layer : layers_) {
    const ggml_tensor* node = ggml_custom_4d(scratch, GGML_TYPE_F32, 1, 1, 1, 1, nullptr, 0, custom_op, GGML_N_TASKS_MAX, &layer);
    std::memcpy(layer.patched.data(), node->op_params, sizeof(OpParams));
  }
  ggml_free(scratch);
}

GraphHook::Layer* GraphHook::find_layer(const ggml_tensor* node) {
  const auto found = layer_index_.find(cache_layer(node->src[1]));
  if (found != layer_index_.end()) return &layers_[found->second];
  server_.fail(guarded(
      "name a node", [&] { return error(StatusCode::internal, "attention node ", ggml_get_name(node), " has an unknown layer"); }));
  return nullptr;
}

void GraphHook::patch(ggml_tensor* node) {
  Layer* layer = find_layer(node);
  if (layer == nullptr) return;
  std::memcpy(layer->stock.data(), node->op_params, sizeof(OpParams));
  std::memcpy(node->op_params, layer->patched.data(), sizeof(OpParams));
  node->op = GGML_OP_CUSTOM;
}

void GraphHook::unpatch(ggml_tensor* node) {
  for (const Layer& layer : layers_) {
    if (std::memcmp(node->op_params, layer.patched.data(), sizeof(OpParams)) != 0) continue;
    std::memcpy(node->op_params, layer.stock.data(), sizeof(OpParams));
    node->op = GGML_OP_FLASH_ATTN_EXT;
    return;
  }
}

void GraphHook::overwrite(const ggml_tensor* node) {
  const Layer* layer = find_layer(node);
  if (layer == nullptr) return;
  OpParams params;
  std::memcpy(params.data(), node->op_params, sizeof(params));
  server_.serve(layer->index, node, params, 0, 1);
}

bool GraphHook::ask(ggml_tensor* node) {
  if (!attached_) {
    if (node->op == GGML_OP_CUSTOM) unpatch(node);
    return false;
  }
  if (node->op != GGML_OP_FLASH_ATTN_EXT) return false;
  if (path_ == Path::overwrite) return true;
  patch(node);
  return false;
}

bool GraphHook::on_node(ggml_tensor* node, bool asking, void* user) {
  auto& hook = *static_cast<GraphHook*>(user);
  if (asking) {
    const bool wanted = hook.ask(node) | (hook.attached_ && hook.tap_ != nullptr && hook.tap_->wants(node));
    hook.next_wants_ = hook.next_eval_ != nullptr && hook.next_eval_(node, true, hook.next_eval_data_);
    return wanted || hook.next_wants_;
  }
  if (hook.attached_ && hook.path_ == Path::overwrite && node->op == GGML_OP_FLASH_ATTN_EXT) {
    hook.overwrite(node);
    if (hook.server_.failed()) return false;
  }
  if (hook.attached_ && hook.tap_ != nullptr) hook.tap_->read(node);
  return !hook.next_wants_ || hook.next_eval_(node, false, hook.next_eval_data_);
}

bool GraphHook::on_abort(void* user) {
  auto& hook = *static_cast<GraphHook*>(user);
  return (hook.attached_ && hook.server_.failed()) || (hook.next_abort_ != nullptr && hook.next_abort_(hook.next_abort_data_));
}

}  // namespace tierkv::llama
