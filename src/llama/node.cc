#include "llama/node.h"

#include <ggml-backend.h>

#include <cstring>
#include <string_view>

#include "base/status_macros.h"

namespace tierkv::llama {
namespace {

Status unsupported(const ggml_tensor* node, const char* why) {
  return error(StatusCode::unsupported, "attention node ", ggml_get_name(node), ": ", why);
}

bool in_host_memory(const ggml_tensor* t) {
  const ggml_backend_buffer_t buffer = t->view_src != nullptr ? t->view_src->buffer : t->buffer;
  return t->data != nullptr && (buffer == nullptr || ggml_backend_buffer_is_host(buffer));
}

RowsView rows(const ggml_tensor* t, DType type, uint32_t tokens) {
  const auto size = static_cast<ptrdiff_t>(ggml_type_size(t->type));
  return {t->data,
          type,
          tokens,
          static_cast<uint32_t>(t->ne[2]),
          static_cast<uint32_t>(t->ne[0]),
          static_cast<ptrdiff_t>(t->nb[1]) / size,
          static_cast<ptrdiff_t>(t->nb[2]) / size};
}

float parameter(const int32_t* op_params, int index) {
  float value;
  std::memcpy(&value, op_params + index, sizeof(value));
  return value;
}

}  // namespace

int32_t cache_layer(const ggml_tensor* keys) {
  constexpr std::string_view kPrefix = "cache_k_l";
  if (keys == nullptr || keys->view_src == nullptr) return -1;
  const std::string_view name = ggml_get_name(keys->view_src);
  if (name.size() <= kPrefix.size() || name.size() > kPrefix.size() + 6 || name.substr(0, kPrefix.size()) != kPrefix) return -1;
  int32_t layer = 0;
  for (const char c : name.substr(kPrefix.size())) {
    if (c < '0' || c > '9') return -1;
    layer = layer * 10 + (c - '0');
  }
  return layer;
}

Result<AttentionNode> read_node(const ggml_tensor* node, const int32_t* op_params) {
  const ggml_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2], *mask = node->src[3], *sinks = node->src[4];
  if (q == nullptr || k == nullptr || v == nullptr) return unsupported(node, "it has no queries, keys or values");
  AttentionNode result;
  result.layer = cache_layer(k);
  if (result.layer < 0) return unsupported(node, "its keys do not come from the cache of a layer");
  if (v->view_src == k->view_src) return unsupported(node, "its values are part of its keys (latent attention, MLA)");
  if (k->ne[0] != v->ne[0] || k->ne[2] != v->ne[2]) return unsupported(node, "its keys and values have different shapes");
  if (q->ne[0] != k->ne[0] || k->ne[2] == 0 || q->ne[2] % k->ne[2] != 0)
    return unsupported(node, "its queries do not fit its keys");
  if (q->type != GGML_TYPE_F32 || k->type != GGML_TYPE_F16 || v->type != GGML_TYPE_F16 || node->type != GGML_TYPE_F32) {
    return unsupported(node, "its queries are not f32, or its keys and values not f16");
  }
  if (q->ne[3] != 1 || k->ne[3] != 1 || k->ne[1] < q->ne[1]) return unsupported(node, "its cache is split into streams");
  if (q->nb[0] != sizeof(float) || k->nb[0] != sizeof(uint16_t) || v->nb[0] != sizeof(uint16_t) || !ggml_is_contiguous(node)) {
    return unsupported(node, "its rows are not contiguous");
  }
  if (op_params[4] > 0) return unsupported(node, "it attends to a selection of keys (sparse attention)");
  if (!in_host_memory(q) || !in_host_memory(k) || !in_host_memory(v) || !in_host_memory(node)) {
    return unsupported(node, "it runs on a device: load the model with n_gpu_layers = 0 to use a cache in host memory");
  }
  const auto tokens = static_cast<uint32_t>(q->ne[1]);
  result.queries = rows(q, DType::f32, tokens);
  result.keys = rows(k, DType::f16, tokens);
  result.values = rows(v, DType::f16, tokens);
  result.out = static_cast<float*>(node->data);
  result.scale = parameter(op_params, 0);
  result.max_bias = parameter(op_params, 1);
  result.softcap = parameter(op_params, 2);
  result.mask = mask;
  if (sinks != nullptr) {
    if (sinks->type != GGML_TYPE_F32 || !in_host_memory(sinks)) return unsupported(node, "its sinks are not f32 in host memory");
    result.sink_logits = static_cast<const float*>(sinks->data);
  }
  return result;
}

}  // namespace tierkv::llama
