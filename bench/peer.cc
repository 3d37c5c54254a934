#include "bench/peer.h"

#if defined(TIERKV_BENCH_GGML)
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/f16.h"
#endif

#include "base/status_macros.h"

namespace tierkv::bench {

#if defined(TIERKV_BENCH_GGML)
namespace {

struct FreeContext {
  void operator()(ggml_context* context) const { ggml_free(context); }
};
struct FreeBuffer {
  void operator()(ggml_backend_buffer* buffer) const { ggml_backend_buffer_free(buffer); }
};
using Context = std::unique_ptr<ggml_context, FreeContext>;
using Buffer = std::unique_ptr<ggml_backend_buffer, FreeBuffer>;

Context make_context(size_t bytes) { return Context(ggml_init({bytes, nullptr, /*no_alloc=*/true})); }

// The process' one CPU backend: the best of the kernel libraries that this processor runs.
ggml_backend_t cpu_backend() {
  static ggml_backend_t backend = [] {
    ggml_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    ggml_backend_load_all();
    return ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
  }();
  return backend;
}

// A function of the backend's library, which may have been loaded at run time; null when it has none of that name.
template <class Function>
Function backend_function(const char* name) {
  ggml_backend_reg_t library = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu_backend()));
  return reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(library, name));
}

struct NamedType {
  const char* name;
  ggml_type type;
};
constexpr NamedType kTypes[] = {{"f16", GGML_TYPE_F16}, {"q8_0", GGML_TYPE_Q8_0}, {"q4_0", GGML_TYPE_Q4_0}};

}  // namespace

struct Peer::Impl {
  struct Copy {
    ggml_tensor* keys = nullptr;
    ggml_tensor* values = nullptr;
    ggml_tensor* out = nullptr;
    ggml_cgraph* graph = nullptr;
  };

  SourceRows stored;
  PeerLayout layout = PeerLayout::by_head;
  uint32_t tokens = 0, threads = 1, count = 0;
  Context cache_context, graph_context;
  Buffer cache_buffer, graph_buffer;
  std::vector<Copy> copies;
  size_t turn = 0, last = 0;

  // The rows of one side in the cache's type into every copy, and what they are worth back as floats.
  Status fill(ggml_type type, std::vector<float>& rows, ggml_tensor* Copy::*side) {
    const uint32_t dim = stored.shape.head_dim, heads = stored.shape.kv_heads;
    const size_t row_bytes = ggml_row_size(type, dim);
    std::vector<std::byte> packed(row_bytes * heads * stored.period), one_head(row_bytes * stored.period);
    const size_t written = ggml_quantize_chunk(type, rows.data(), packed.data(), 0, int64_t{stored.period} * heads, dim, nullptr);
    if (written != packed.size()) return error(StatusCode::internal, "ggml wrote ", written, " bytes of ", packed.size());
    ggml_get_type_traits(type)->to_float(packed.data(), rows.data(), static_cast<int64_t>(rows.size()));
    if (layout == PeerLayout::by_token) {
      repeat(side, 0, packed, row_bytes * heads);
      return {};
    }
    for (uint32_t head = 0; head < heads; ++head) {
      for (uint32_t t = 0; t < stored.period; ++t) {
        std::memcpy(one_head.data() + t * row_bytes, packed.data() + (size_t{t} * heads + head) * row_bytes, row_bytes);
      }
      repeat(side, head * row_bytes * tokens, one_head, row_bytes);
    }
    return {};
  }

  // A period of packed rows, again and again for all tokens, at `offset` of every copy.
  void repeat(ggml_tensor* Copy::*side, size_t offset, const std::vector<std::byte>& period, size_t row_bytes) {
    for (Copy& copy : copies) {
      for (uint32_t t = 0; t < tokens; t += stored.period) {
        ggml_backend_tensor_set(copy.*side, period.data(), offset + t * row_bytes, row_bytes * std::min(stored.period, tokens - t));
      }
    }
  }
};

Peer::Peer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Peer::~Peer() = default;

std::vector<std::string> Peer::types() {
  if (!cpu_backend()) return {};
  std::vector<std::string> names;
  for (const NamedType& type : kTypes) names.push_back(type.name);
  return names;
}

std::string Peer::isa() {
  if (!cpu_backend()) return "";
  const auto features = backend_function<ggml_backend_get_features_t>("ggml_backend_get_features");
  if (!features) return "unknown";
  std::string text;
  ggml_backend_reg_t library = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu_backend()));
  for (const ggml_backend_feature* f = features(library); f && f->name; ++f) {
    for (const char* wanted : {"AVX2", "AVX512", "AVX512_VNNI", "AVX512_BF16", "NEON", "DOTPROD", "SVE"}) {
      if (std::strcmp(f->name, wanted) != 0 || std::strcmp(f->value, "1") != 0) continue;
      if (!text.empty()) text += '+';
      for (const char* c = wanted; *c; ++c) text += static_cast<char>(*c >= 'A' && *c <= 'Z' ? *c + 32 : *c);
    }
  }
  return text.empty() ? "baseline" : text;
}

Result<std::unique_ptr<Peer>> Peer::create(const std::string& name, PeerLayout layout, const SourceRows& rows, uint32_t tokens,
                                           uint64_t least_bytes, uint32_t threads) {
  ggml_type type = GGML_TYPE_COUNT;
  for (const NamedType& t : kTypes) {
    if (name == t.name) type = t.type;
  }
  if (type == GGML_TYPE_COUNT || !cpu_backend()) return error(StatusCode::invalid_argument, "there is no peer type ", name);
  const AttentionShape& s = rows.shape;
  const uint64_t bytes = 2 * uint64_t{tokens} * ggml_row_size(type, static_cast<int64_t>(s.row()));
  const uint64_t copies = std::max<uint64_t>(1, (least_bytes + bytes - 1) / bytes);
  auto impl = std::make_unique<Impl>();
  impl->stored = rows;
  impl->layout = layout;
  impl->tokens = tokens;
  impl->threads = threads;
  impl->copies.resize(copies);
  impl->cache_context = make_context(ggml_tensor_overhead() * (2 * copies + 1));
  for (Impl::Copy& copy : impl->copies) {
    for (ggml_tensor** side : {&copy.keys, &copy.values}) {
      const bool by_head = layout == PeerLayout::by_head;
      *side = ggml_new_tensor_3d(impl->cache_context.get(), type, s.head_dim, by_head ? tokens : s.kv_heads,
                                 by_head ? s.kv_heads : tokens);
    }
  }
  impl->cache_buffer.reset(ggml_backend_alloc_ctx_tensors(impl->cache_context.get(), cpu_backend()));
  if (!impl->cache_buffer)
    return error(StatusCode::resource_exhausted, "no memory for ", copies, " caches of ", tokens, " tokens in ", name);
  TIERKV_RETURN_IF_ERROR(impl->fill(type, impl->stored.keys, &Impl::Copy::keys));
  TIERKV_RETURN_IF_ERROR(impl->fill(type, impl->stored.values, &Impl::Copy::values));
  return std::unique_ptr<Peer>(new Peer(std::move(impl)));
}

Status Peer::set_queries(const std::vector<float>& queries, uint32_t count) {
  Impl& impl = *impl_;
  const AttentionShape& s = impl.stored.shape;
  impl.graph_buffer.reset();
  impl.graph_context = make_context((ggml_tensor_overhead() * 8 + ggml_graph_overhead_custom(8, false)) * (impl.copies.size() + 1));
  ggml_context* context = impl.graph_context.get();
  ggml_tensor* input = ggml_new_tensor_3d(context, GGML_TYPE_F32, s.head_dim, s.heads, count);
  ggml_tensor* mask = ggml_new_tensor_2d(context, GGML_TYPE_F16, impl.tokens, count);
  const auto by_head = [&](ggml_tensor* side) {
    return impl.layout == PeerLayout::by_head ? side : ggml_permute(context, side, 0, 2, 1, 3);
  };
  for (Impl::Copy& copy : impl.copies) {
    copy.out = ggml_flash_attn_ext(context, ggml_permute(context, input, 0, 2, 1, 3), by_head(copy.keys), by_head(copy.values),
                                   mask, 1.0f / std::sqrt(static_cast<float>(s.head_dim)), 0.0f, 0.0f);
// Older releases have this name alone, newer ones have both.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    ggml_flash_attn_ext_set_prec(copy.out, GGML_PREC_F32);
#pragma GCC diagnostic pop
    copy.graph = ggml_new_graph_custom(context, 8, false);
    ggml_build_forward_expand(copy.graph, copy.out);
  }
  impl.graph_buffer.reset(ggml_backend_alloc_ctx_tensors(context, cpu_backend()));
  if (!impl.graph_buffer) return error(StatusCode::resource_exhausted, "no memory for ", count, " queries");

  ggml_backend_tensor_set(input, queries.data(), 0, queries.size() * sizeof(float));
  std::vector<uint16_t> row(impl.tokens);
  for (uint32_t q = 0; q < count; ++q) {
    const uint32_t seen = impl.tokens - count + q + 1;
    for (uint32_t t = 0; t < impl.tokens; ++t) row[t] = f32_to_f16(t < seen ? 0.0f : -INFINITY);
    ggml_backend_tensor_set(mask, row.data(), q * row.size() * sizeof(uint16_t), row.size() * sizeof(uint16_t));
  }
  impl.count = count;
  impl.turn = impl.last = 0;
  return {};
}

Status Peer::compute() {
  Impl& impl = *impl_;
  if (const auto set_threads = backend_function<ggml_backend_set_n_threads_t>("ggml_backend_set_n_threads")) {
    set_threads(cpu_backend(), static_cast<int>(impl.threads));
  }
  impl.last = impl.turn;
  impl.turn = (impl.turn + 1) % impl.copies.size();
  const ggml_status status = ggml_backend_graph_compute(cpu_backend(), impl.copies[impl.last].graph);
  return status == GGML_STATUS_SUCCESS ? Status() : error(StatusCode::internal, "ggml: ", ggml_status_to_string(status));
}

std::vector<float> Peer::output() const {
  const AttentionShape& s = impl_->stored.shape;
  std::vector<float> out(static_cast<size_t>(impl_->count) * s.heads * s.head_dim);
  ggml_backend_tensor_get(impl_->copies[impl_->last].out, out.data(), 0, out.size() * sizeof(float));
  return out;
}

const SourceRows& Peer::stored() const { return impl_->stored; }

#else  // no ggml

struct Peer::Impl {
  SourceRows stored;
};

Peer::Peer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Peer::~Peer() = default;
std::vector<std::string> Peer::types() { return {}; }
std::string Peer::isa() { return ""; }
Result<std::unique_ptr<Peer>> Peer::create(const std::string& type, PeerLayout, const SourceRows&, uint32_t, uint64_t, uint32_t) {
  return error(StatusCode::invalid_argument, "this program was built without ggml, there is no peer type ", type);
}
Status Peer::set_queries(const std::vector<float>&, uint32_t) { return {}; }
Status Peer::compute() { return {}; }
std::vector<float> Peer::output() const { return {}; }
const SourceRows& Peer::stored() const { return impl_->stored; }

#endif

}  // namespace tierkv::bench
