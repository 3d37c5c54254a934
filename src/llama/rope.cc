#include "llama/rope.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "base/status_macros.h"

namespace tierkv::llama {
namespace {

template <class T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

constexpr int kMode = 2;  // of op_params; the angles' other parameters need no name here

// A node of the same operation over `rows`, for whatever ggml checks when it is made; its parameters are the model's afterwards.
ggml_tensor* rope_node(ggml_context* context, const RopeNode& rope, ggml_tensor* rows, ggml_tensor* positions,
                       ggml_tensor* factors) {
  const int dims = rope.params[1], mode = rope.params[kMode];
  int sections[GGML_MROPE_SECTIONS];
  std::memcpy(sections, rope.params.data() + 11, sizeof(sections));
  ggml_tensor* node =
      (mode & GGML_ROPE_TYPE_MROPE) != 0
          ? ggml_rope_multi(context, rows, positions, factors, dims, sections, mode, 0, 1e4f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f)
          : ggml_rope_ext(context, rows, positions, factors, dims, mode, 0, 1e4f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f);
  std::memcpy(node->op_params, rope.params.data(), sizeof(rope.params));
  return node;
}

}  // namespace

RopeNode read_rope(const ggml_tensor* node) {
  RopeNode rope;
  std::memcpy(rope.params.data(), node->op_params, sizeof(rope.params));
  if (const ggml_tensor* factors = node->src[2]; factors != nullptr && factors->type == GGML_TYPE_F32) {
    rope.factors.resize(static_cast<size_t>(factors->ne[0]));
    ggml_backend_tensor_get(factors, rope.factors.data(), 0, rope.factors.size() * sizeof(float));
  }
  return rope;
}

Result<std::vector<float>> apply_rope(const RopeNode& rope, uint32_t head_dim, const std::vector<float>& rows, int32_t position) {
  const Owned<ggml_backend> backend(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr), ggml_backend_free);
  ggml_init_params init{};
  init.mem_size = 16 * ggml_tensor_overhead() + ggml_graph_overhead();
  init.no_alloc = true;
  const Owned<ggml_context> context(ggml_init(init), ggml_free);
  if (!backend || !context) return error(StatusCode::internal, "ggml has no CPU backend to ask about RoPE");
  const auto count = static_cast<int64_t>(rows.size() / head_dim);
  ggml_tensor* in = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, head_dim, count, 1);
  // Text has one position for every kind; libllama leaves the fourth at 0.
  const bool several = (rope.params[kMode] & GGML_ROPE_TYPE_MROPE) != 0;
  const int32_t positions[4] = {position, position, position, 0};
  ggml_tensor* at = ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, several ? 4 : 1);
  ggml_tensor* factors =
      rope.factors.empty() ? nullptr : ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, static_cast<int64_t>(rope.factors.size()));
  ggml_tensor* out = rope_node(context.get(), rope, in, at, factors);
  ggml_cgraph* graph = ggml_new_graph(context.get());
  ggml_build_forward_expand(graph, out);
  const Owned<ggml_backend_buffer> buffer(ggml_backend_alloc_ctx_tensors(context.get(), backend.get()), ggml_backend_buffer_free);
  if (!buffer) return error(StatusCode::resource_exhausted, "ggml has no memory for ", rows.size(), " values");
  ggml_backend_tensor_set(in, rows.data(), 0, rows.size() * sizeof(float));
  ggml_backend_tensor_set(at, positions, 0, (several ? 4 : 1) * sizeof(int32_t));
  if (factors != nullptr) ggml_backend_tensor_set(factors, rope.factors.data(), 0, rope.factors.size() * sizeof(float));
  if (ggml_backend_graph_compute(backend.get(), graph) != GGML_STATUS_SUCCESS) {
    return error(StatusCode::internal, "ggml could not compute RoPE");
  }
  std::vector<float> result(rows.size());
  ggml_backend_tensor_get(out, result.data(), 0, result.size() * sizeof(float));
  return result;
}

Result<calib::Rope> rope_of(const RopeNode& rope, uint32_t head_dim) {
  const int dims = rope.params[1];
  if (dims < 2 || dims > static_cast<int>(head_dim) ||
      (!rope.factors.empty() && rope.factors.size() < static_cast<size_t>(dims) / 2)) {
    return error(StatusCode::unsupported, "its RoPE turns ", dims, " of ", head_dim, " channels with ", rope.factors.size(),
                 " factors");
  }
  std::vector<float> units(static_cast<size_t>(head_dim) * head_dim, 0.0f);
  for (uint32_t j = 0; j < head_dim; ++j) units[static_cast<size_t>(j) * head_dim + j] = 1.0f;
  TIERKV_ASSIGN_OR_RETURN(const std::vector<float> images, apply_rope(rope, head_dim, units, 1));
  const auto image = [&](uint32_t of, uint32_t channel) { return images[static_cast<size_t>(of) * head_dim + channel]; };
  calib::Rope pairs;
  for (uint32_t a = 0; a < head_dim; ++a) {
    for (uint32_t b = a + 1; b < head_dim; ++b) {
      const float sine = image(a, b);
      if (sine == 0.0f) continue;
      const float length = std::hypot(sine, image(a, a));
      for (const calib::RopePair& pair : pairs) {
        if (pair.a != a && pair.b != a && pair.a != b && pair.b != b) continue;
        return error(StatusCode::unsupported, "its RoPE mixes more than two channels");
      }
      if (std::fabs(image(b, a) + sine) > 1e-5f * length || std::fabs(image(b, b) - image(a, a)) > 1e-5f * length) {
        return error(StatusCode::unsupported, "its RoPE is not a rotation of channels ", a, " and ", b);
      }
      pairs.push_back({static_cast<uint16_t>(a), static_cast<uint16_t>(b), std::atan2(static_cast<double>(sine), image(a, a))});
    }
  }
  return pairs;
}

}  // namespace tierkv::llama
