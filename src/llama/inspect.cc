// inspect.cc — what a model's attention looks like, found by running it on three tokens.
//
// Sliding windows: libllama says how wide the window is, not which layers slide. Token A at position 0 and token B at 2*window-1
// go to two sequences (within one, positions may not jump), then B's sequence is copied into A's, and token C follows at 2*window.
// The mask of C then tells the layers apart: full attention shows A and B, a sliding window only B, chunked attention (refused)
// neither.
//
// RoPE is what the last such node before a layer's attention says (rope.h). The fingerprint is of the shape and of every
// one-dimensional f32 weight that a node reads: quantizing a model leaves them alone, and training it does not. Settings that
// stretch RoPE are tried as a context would have them; the model is then looked at without them too, to see by how much.
#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/f16.h"
#include "base/guarded.h"
#include "base/status_macros.h"
#include "calib/rope_fit.h"
#include "llama/node.h"
#include "llama/rope.h"
#include "tierkv/llama.h"

namespace tierkv::llama {
namespace {

std::string meta(const llama_model* model, const std::string& key) {
  char text[256];
  const int32_t size = llama_model_meta_val_str(model, key.c_str(), text, sizeof(text));
  return size < 0 ? std::string() : std::string(text);
}

Status refuse(const ModelShape& shape, const char* why) {
  return error(StatusCode::unsupported, "a model of architecture ", shape.architecture, " cannot use the cache: ", why);
}

// What is known without running anything.
Status check_metadata(const ModelShape& shape) {
  const llama_model* model = shape.model;
  if (llama_model_is_hybrid(model)) return refuse(shape, "it is a hybrid of attention and recurrent layers");
  if (llama_model_is_recurrent(model)) return refuse(shape, "it is recurrent and keeps no keys and values");
  if (llama_model_is_diffusion(model)) return refuse(shape, "it is a diffusion model, whose attention looks ahead");
  if (llama_model_has_encoder(model)) return refuse(shape, "it has an encoder");
  if (!meta(model, shape.architecture + ".attention.kv_lora_rank").empty()) {
    return refuse(shape, "it uses latent attention (MLA), which keeps no plain keys and values");
  }
  if (meta(model, shape.architecture + ".attention.causal") == "false") return refuse(shape, "its attention is not causal");
  return {};
}

struct Seen {
  AttentionNode node;
  bool shows_a = false;
  bool shows_b = false;
  std::optional<RopeNode> rope;
  ModelShape::Projection projection;
};

struct Probe {
  std::vector<Seen> seen;
  Status status;
  bool short_rope_factors = false;
  bool other_attention = false;            // softmax attention that is not a fused node
  std::optional<RopeNode> rope;            // the last since the attention before
  int64_t rope_channels = 0;               // of a head that it was given
  const ggml_tensor* attention = nullptr;  // the last node of it
  const ggml_tensor* projected = nullptr;  // what the projection makes of that, and then a norm
  const ggml_tensor* normed = nullptr;
  std::map<std::string, const ggml_tensor*> weights;  // one-dimensional, f32, in host memory
};

bool mask_shows(const ggml_tensor* mask, int64_t cell) {
  uint16_t value = 0;
  ggml_backend_tensor_get(mask, &value, static_cast<size_t>(cell) * sizeof(value), sizeof(value));
  return std::isfinite(f16_to_f32(value));
}

void note_weights(const ggml_tensor* node, Probe& probe) {
  for (const ggml_tensor* source : node->src) {
    if (source == nullptr || source->op != GGML_OP_NONE || source->type != GGML_TYPE_F32 || ggml_n_dims(source) != 1) continue;
    const ggml_backend_buffer_t buffer = source->buffer;
    if (buffer == nullptr || ggml_backend_buffer_get_usage(buffer) != GGML_BACKEND_BUFFER_USAGE_WEIGHTS) continue;
    if (ggml_backend_buffer_is_host(buffer)) probe.weights.emplace(ggml_get_name(source), source);
  }
}

bool is_host_weight(const ggml_tensor* tensor) {
  return tensor != nullptr && tensor->op == GGML_OP_NONE && tensor->buffer != nullptr &&
         ggml_backend_buffer_get_usage(tensor->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS &&
         ggml_backend_buffer_is_host(tensor->buffer);
}

// The tensor that another one shows in another shape.
const ggml_tensor* behind_views(const ggml_tensor* tensor) {
  while (tensor != nullptr && (tensor->op == GGML_OP_RESHAPE || tensor->op == GGML_OP_VIEW || tensor->op == GGML_OP_CONT ||
                               tensor->op == GGML_OP_PERMUTE || tensor->op == GGML_OP_TRANSPOSE)) {
    tensor = tensor->src[0];
  }
  return tensor;
}

// What follows attention: the output projection, a norm of what comes out where a model has one, and that norm's weights. Whatever
// looks different (gates, adapters) is left out: errors are then weighed without it.
void note_projection(const ggml_tensor* node, Probe& probe) {
  if (probe.attention == nullptr || probe.seen.empty()) return;
  ModelShape::Projection& projection = probe.seen.back().projection;
  if (node->op == GGML_OP_MUL_MAT && probe.projected == nullptr && behind_views(node->src[1]) == probe.attention) {
    probe.projected = node;
    if (is_host_weight(node->src[0]) && node->src[0]->ne[2] == 1) projection.weight = node->src[0];
  } else if (node->op == GGML_OP_RMS_NORM && probe.projected != nullptr && node->src[0] == probe.projected) {
    probe.normed = node;
  } else if (node->op == GGML_OP_MUL && probe.normed != nullptr && node->src[0] == probe.normed) {
    if (is_host_weight(node->src[1]) && node->src[1]->type == GGML_TYPE_F32) projection.norm = node->src[1];
    probe.normed = nullptr;
  }
}

void note_rope(const ggml_tensor* node, Probe& probe) {
  probe.rope = read_rope(node);
  probe.rope_channels = node->ne[0];
  if (node->src[2] == nullptr) return;
  const std::string name = ggml_get_name(node->src[2]);
  probe.short_rope_factors |= name.find("rope_factors_") != std::string::npos;
}

// Whether its result is wanted.
bool ask_for(const ggml_tensor* node, Probe& probe) {
  note_weights(node, probe);
  note_projection(node, probe);
  if (node->op == GGML_OP_ROPE) note_rope(node, probe);
  probe.other_attention |= node->op == GGML_OP_SOFT_MAX && std::string_view(ggml_get_name(node)).starts_with("kq_soft_max");
  return node->op == GGML_OP_FLASH_ATTN_EXT;
}

// False: that was enough.
bool look_at(const ggml_tensor* node, Probe& probe) {
  auto read = read_node(node, node->op_params);
  if (!read.ok()) {
    probe.status = read.status();
    return false;
  }
  Seen seen{read.value(), true, true, std::nullopt, {}};
  probe.attention = node;
  probe.projected = probe.normed = nullptr;
  // A part of a head, turned on its own and put together again: which part is not known, and no frame is still a frame.
  if (probe.rope && probe.rope_channels == seen.node.keys.head_dim) seen.rope = probe.rope;
  probe.rope.reset();
  if (seen.node.mask != nullptr && seen.node.mask->type == GGML_TYPE_F16) {
    seen.shows_a = mask_shows(seen.node.mask, 0);
    seen.shows_b = mask_shows(seen.node.mask, 1);
  }
  probe.seen.push_back(seen);
  return true;
}

// libllama's callback: nothing may be thrown through it.
bool on_node(ggml_tensor* node, bool ask, void* user) {
  auto& probe = *static_cast<Probe*>(user);
  try {
    return ask ? ask_for(node, probe) : look_at(node, probe);
  } catch (const std::exception&) {
    probe.status = out_of_memory("look at the model's attention");
    return false;
  }
}

struct Batch {
  llama_batch batch = llama_batch_init(2, 0, 1);
  ~Batch() { llama_batch_free(batch); }
  void clear() { batch.n_tokens = 0; }
  void add(llama_token token, llama_pos position, llama_seq_id seq) {
    const int32_t i = batch.n_tokens++;
    batch.token[i] = token;
    batch.pos[i] = position;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = seq;
    batch.logits[i] = i == 0;
  }
};

Status run_probe(llama_model* model, uint32_t window, const RopeSettings& rope, Probe& probe) {
  llama_context_params params = llama_context_default_params();
  rope.apply(params);
  params.n_ctx = 256;
  params.n_batch = params.n_ubatch = 32;
  params.n_seq_max = 2;
  params.kv_unified = true;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.offload_kqv = params.op_offload = false;
  params.cb_eval = on_node;
  params.cb_eval_user_data = &probe;
  const std::unique_ptr<llama_context, decltype(&llama_free)> context(llama_init_from_model(model, params), llama_free);
  const llama_memory_t memory = context ? llama_get_memory(context.get()) : nullptr;
  if (memory == nullptr) return error(StatusCode::unsupported, "libllama could not make a context with a cache for the model");

  const llama_pos far = window == 0 ? 1 : static_cast<llama_pos>(2 * window - 1);
  Batch batch;
  batch.add(0, 0, 0);
  batch.add(0, far, 1);
  if (llama_decode(context.get(), batch.batch) != 0 && probe.status.ok()) {
    return error(StatusCode::internal, "libllama could not decode two tokens");
  }
  TIERKV_RETURN_IF_ERROR(probe.status);
  probe.seen.clear();
  llama_memory_seq_cp(memory, 1, 0, -1, -1);
  batch.clear();
  batch.add(0, far + 1, 0);
  if (llama_decode(context.get(), batch.batch) != 0 && probe.status.ok()) {
    return error(StatusCode::internal, "libllama could not decode a third token");
  }
  return probe.status;
}

Status check_node(const ModelShape& shape, const Seen& seen) {
  const AttentionNode& node = seen.node;
  if (node.max_bias > 0.0f) return refuse(shape, "it uses ALiBi position biases");
  if (!seen.shows_b) return refuse(shape, "its attention is chunked");
  if (node.queries.heads != shape.heads || node.keys.heads != shape.kv_heads || node.keys.head_dim != shape.head_dim) {
    return refuse(shape, "its layers have different numbers of heads or different head dimensions");
  }
  if (std::find(shape.cache_layers.begin(), shape.cache_layers.end(), node.layer) != shape.cache_layers.end()) {
    return refuse(shape, "layers share their keys and values");
  }
  return {};
}

// A layer whose RoPE is no rotation of pairs gets none: any frame is a right one, and the cache's own attention needs none.
std::vector<calib::Rope> find_rotations(const Probe& probe, uint32_t head_dim) {
  std::vector<std::pair<RopeNode, calib::Rope>> known;
  std::vector<calib::Rope> ropes;
  for (const Seen& seen : probe.seen) {
    calib::Rope& rope = ropes.emplace_back();
    if (!seen.rope) continue;
    const auto same = std::find_if(known.begin(), known.end(), [&](const auto& entry) { return entry.first == *seen.rope; });
    if (same != known.end()) {
      rope = same->second;
    } else if (auto found = rope_of(*seen.rope, head_dim); found.ok()) {
      rope = found.value();
      known.emplace_back(*seen.rope, rope);
    }
  }
  return ropes;
}

uint64_t fingerprint_of(const Probe& probe, const ModelShape& shape) {
  ByteWriter bytes;
  bytes.put_text(shape.architecture);
  bytes.put_text(meta(shape.model, "general.name"));
  for (const uint32_t number : {shape.layers, shape.heads, shape.kv_heads, shape.head_dim}) bytes.put(number);
  for (const auto& [name, weight] : probe.weights) {
    bytes.put_text(name);
    bytes.put_bytes({static_cast<const std::byte*>(weight->data), ggml_nbytes(weight)});
  }
  return checksum(bytes.bytes());
}

}  // namespace

void ModelShape::apply(CacheConfig& config) const {
  if (config.model.empty()) config.model = name;
  config.num_layers = layers;
  config.num_heads = heads;
  config.num_kv_heads = kv_heads;
  config.head_dim = head_dim;
  // One override for each run of layers with the same window.
  for (uint32_t first = 0, last = 0; first < layers; first = last + 1) {
    for (last = first; last + 1 < layers && window[last + 1] == window[first];) ++last;
    if (window[first] == 0 && config.tiers.window == 0) continue;
    LayerOverride change;
    change.first = first;
    change.last = last;
    change.window = window[first];
    config.overrides.push_back(change);
  }
}

CalibrationInfo ModelShape::identity() const {
  CalibrationInfo id;
  id.model = name;
  id.fingerprint = fingerprint;
  id.num_layers = layers;
  id.num_heads = heads;
  id.num_kv_heads = kv_heads;
  id.head_dim = head_dim;
  id.ropes = ropes;
  return id;
}

namespace {

// What the model was made for. The file is asked: libllama's own number changes when a context with YaRN is made.
uint32_t trained_context(const ModelShape& shape, bool short_rope_factors) {
  const auto number = [&](const char* key, uint32_t otherwise) {
    const std::string text = meta(shape.model, shape.architecture + key);
    return text.empty() ? otherwise : static_cast<uint32_t>(std::strtoul(text.c_str(), nullptr, 10));
  };
  const auto known = static_cast<uint32_t>(std::max(0, llama_model_n_ctx_train(shape.model)));
  const uint32_t context = number(".context_length", known);
  // LongRoPE: libllama picks the factors by the context's size, which the host keeps small: the short ones, for short contexts.
  return short_rope_factors ? std::min(context, number(".rope.scaling.original_context_length", context)) : context;
}

double slowest(const calib::Rope& rope) {
  double angle = 0.0;
  for (const calib::RopePair& pair : rope) {
    const double turn = std::fabs(pair.angle);
    if (turn > 0.0 && (angle == 0.0 || turn < angle)) angle = turn;
  }
  return angle;
}

// How many times further positions go before the slowest channels of a layer that sees everything have turned as far.
double stretch(const ModelShape& own, const ModelShape& shape) {
  double least = 0.0;
  for (uint32_t l = 0; l < shape.layers && l < own.layers; ++l) {
    const double before = slowest(own.ropes[l]), now = slowest(shape.ropes[l]);
    if (shape.window[l] != 0 || before == 0.0 || now == 0.0) continue;
    if (least == 0.0 || before / now < least) least = before / now;
  }
  return least == 0.0 ? 1.0 : least;
}

Result<ModelShape> look(llama_model* model, const RopeSettings& rope) {
  if (model == nullptr) return error(StatusCode::invalid_argument, "there is no model: llama_model_load_from_file() failed");
  ModelShape shape;
  shape.model = model;
  shape.rope = rope;
  shape.architecture = meta(model, "general.architecture");
  TIERKV_RETURN_IF_ERROR(check_metadata(shape));
  shape.name = (meta(model, "general.name") + " (" + shape.architecture).substr(0, 200) + ", " +
               std::to_string(llama_model_n_params(model)) + " parameters, " + std::to_string(llama_model_size(model)) + " bytes)";

  const auto window = static_cast<uint32_t>(std::max(0, llama_model_n_swa(model)));
  Probe probe;
  if (Status status = run_probe(model, window, rope, probe); !status.ok()) {
    if (status.code() == StatusCode::unsupported) return refuse(shape, status.message().c_str());
    return status;
  }
  if (probe.seen.empty() || probe.other_attention) return refuse(shape, "its attention is not libllama's fused attention");
  const AttentionNode& first = probe.seen.front().node;
  shape.heads = first.queries.heads;
  shape.kv_heads = first.keys.heads;
  shape.head_dim = first.keys.head_dim;
  shape.scale = first.scale;
  shape.softcap = first.softcap;
  if (shape.head_dim < 32 || shape.head_dim > 256 || shape.head_dim % 16 != 0) {
    return error(StatusCode::unsupported, "a model of architecture ", shape.architecture, " cannot use the cache: its head_dim is ",
                 shape.head_dim, ", and only multiples of 16 from 32 to 256 are served");
  }
  for (const Seen& seen : probe.seen) {
    TIERKV_RETURN_IF_ERROR(check_node(shape, seen));
    shape.cache_layers.push_back(seen.node.layer);
    shape.window.push_back(window != 0 && !seen.shows_a ? window : 0);
    shape.projections.push_back(seen.projection);
  }
  shape.layers = static_cast<uint32_t>(shape.cache_layers.size());
  shape.ropes = find_rotations(probe, shape.head_dim);
  shape.fingerprint = fingerprint_of(probe, shape);
  shape.context = trained_context(shape, probe.short_rope_factors);
  return shape;
}

}  // namespace

Result<ModelShape> inspect(llama_model* model) { return inspect(model, RopeSettings()); }
Result<ModelShape> inspect(llama_model* model, const llama_context_params& params) {
  return inspect(model, RopeSettings::of(params));
}

Result<ModelShape> inspect(llama_model* model, const RopeSettings& rope) try {
  TIERKV_ASSIGN_OR_RETURN(ModelShape shape, look(model, rope));
  if (rope == RopeSettings()) return shape;
  TIERKV_ASSIGN_OR_RETURN(const ModelShape own, look(model, RopeSettings()));
  shape.own_ropes = calib::compare(own.ropes, shape.ropes) == calib::RopeFit::same;
  // Its keys are then not those of the model as it is: turned by other angles, or longer, which angles do not show.
  if (!shape.own_ropes || rope.yarn_attn_factor >= 0.0f) shape.name += " with " + rope.text();
  if (shape.own_ropes) return shape;
  shape.context = static_cast<uint32_t>(std::min(std::llround(own.context * stretch(own, shape)), 1ll << 30));
  return shape;
}
TIERKV_NO_MEMORY("look at the model")

}  // namespace tierkv::llama
