// step.cc — one layer of one step of a batch, append and attention in one call: what tierkv.hf does for every token. Its rows are
// torch tensors [batch][heads][tokens][head_dim].
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>

#include "handle.h"
#include "tensors.h"

namespace tierkv::python {
namespace {

size_t element_bytes(DType type) { return type == DType::f32 ? 4 : 2; }

struct BatchRows {
  Tensor tensor;
  MemoryPlace place = MemoryPlace::host;
  void* stream = nullptr;

  RowsView row(size_t b, uint32_t first, uint32_t count) const {
    const int64_t offset = static_cast<int64_t>(b) * tensor.strides[0] + static_cast<int64_t>(first) * tensor.strides[2];
    RowsView view{tensor.data + offset * static_cast<int64_t>(element_bytes(tensor.type)), tensor.type, count,
                  static_cast<uint32_t>(tensor.shape[1]), static_cast<uint32_t>(tensor.shape[3])};
    view.token_stride = tensor.strides[2];
    view.head_stride = tensor.strides[1];
    view.place = place;
    view.ready = stream;
    return view;
  }
};

// How many rows may be appended before the first of them is attended from, as the host for libllama has it: what leaves the hot
// tail is compressed, and prompts should see no less of it than single tokens do.
uint32_t chunk_of(const CacheConfig& config, uint32_t layer) {
  const LayerConfig tiers = config.layer(layer);
  uint32_t chunk = tiers.hot == kAll ? kAll : std::max<uint32_t>(tiers.hot, 32);
  if (tiers.window != 0) chunk = std::min(chunk, std::max<uint32_t>(config.window_slack, 1));
  return chunk;
}

// Rows of an append that nobody attends from: bounds what is copied at a time.
constexpr uint32_t kStored = 2048;

// Row b of the batch is the sequence seqs[b] and starts at token starts[b]: what is before it is padding, and left alone in `out`.
// Appends and attends; out is [batch][tokens][query heads][head_dim] of its type. Without room for results it only appends.
Status serve(AdaptiveKVCache& cache, uint32_t layer, const std::vector<SeqId>& seqs, const std::vector<uint32_t>& starts,
             uint32_t tokens, const BatchRows& keys, const BatchRows& values, const BatchRows& queries, char* out, DType out_type,
             const AttentionOptions& options) {
  const uint32_t chunk = tokens == 1 ? 1 : out == nullptr ? kStored : chunk_of(cache.config(), layer);
  const size_t row_bytes = static_cast<size_t>(queries.tensor.shape[1] * queries.tensor.shape[3]) * element_bytes(out_type);
  std::vector<AppendItem> rows;
  std::vector<AttentionItem> items;
  rows.reserve(seqs.size()), items.reserve(seqs.size());
  for (uint64_t done = 0; done < tokens; done += chunk) {
    rows.clear();
    items.clear();
    for (size_t b = 0; b < seqs.size(); ++b) {
      const uint64_t first = done + (starts.empty() ? 0 : starts[b]);
      if (first >= tokens) continue;
      const auto from = static_cast<uint32_t>(first), count = std::min(chunk, tokens - from);
      rows.push_back({seqs[b], keys.row(b, from, count), values.row(b, from, count), {}});
      if (out == nullptr) continue;
      auto* const to = reinterpret_cast<float*>(out + (b * tokens + from) * row_bytes);
      items.push_back({seqs[b], queries.row(b, from, count), to, -1, nullptr, {}, out_type});
    }
    if (rows.empty()) break;
    if (Status status = out ? cache.step(layer, rows, items, options) : cache.append_many(layer, rows); !status.ok()) return status;
  }
  return {};
}

// What a call says of its tensors: where they are to be, and how many sequences and tokens there are.
struct Call {
  const Handle& handle;
  const CacheConfig& config;
  uint32_t layer;
  size_t batch;
  int64_t stream;  // < 0: rows are in host memory

  [[noreturn]] void refuse(const Tensor& tensor, const char* what, const std::string& meant) const {
    raise(StatusCode::invalid_argument, "layer " + std::to_string(layer) + ", " + text_of(tensor, what) + " must be " + meant);
  }

  Tensor checked(Tensor tensor, const char* what, const int64_t (&shape)[4]) const {
    if (!tensor.is(shape[0], shape[1], shape[2], shape[3]))
      refuse(tensor, what, shape_text(shape) + "; a cache serves the model that it was made for");
    if ((tensor.device < 0) != (stream < 0) || (stream >= 0 && tensor.device != handle.device()))
      refuse(tensor, what, handle.device() < 0 ? "in host memory" : "on CUDA device " + std::to_string(handle.device()));
    return tensor;
  }

  BatchRows rows(Tensor tensor, const char* what, uint32_t heads, int64_t tokens) const {
    BatchRows rows{checked(std::move(tensor), what, {static_cast<int64_t>(batch), heads, tokens, config.head_dim})};
    if (stream < 0) return rows;
    rows.place = MemoryPlace::device;
    rows.stream = reinterpret_cast<void*>(static_cast<uintptr_t>(stream));
    return rows;
  }
};

// sinks: null, or the address of a float for each query head, in host memory. Without `out` rows are appended and no more.
void step(const Handle& self, uint32_t layer, const std::vector<SeqId>& seqs, const std::vector<uint32_t>& starts, nb::handle query,
          nb::handle key, nb::handle value, nb::handle out, float scale, float softcap, uintptr_t sinks, int64_t stream,
          bool observe) {
  const Handle::Shared cache = self.live();
  const CacheConfig& config = cache->config();
  if (layer >= config.num_layers) raise(StatusCode::out_of_range, "layer " + std::to_string(layer) + " is past the last");
  if (!starts.empty() && starts.size() != seqs.size()) raise(StatusCode::invalid_argument, "a start for each sequence, or none");
  const Call call{self, config, layer, seqs.size(), stream};
  Tensor given = tensor_of(key, "keys");
  const int64_t tokens = given.shape[2];
  if (tokens > std::numeric_limits<uint32_t>::max()) raise(StatusCode::invalid_argument, "keys: too many tokens");
  const BatchRows keys = call.rows(std::move(given), "keys", config.num_kv_heads, tokens);
  const BatchRows values = call.rows(tensor_of(value, "values"), "values", config.num_kv_heads, tokens);
  BatchRows queries;
  char* results = nullptr;
  DType out_type = DType::f32;
  if (!out.is_none()) {
    const uint32_t heads = config.query_heads();
    queries = call.rows(tensor_of(query, "queries"), "queries", heads, tokens);
    const Tensor room =
        call.checked(tensor_of(out, "out"), "out", {static_cast<int64_t>(seqs.size()), tokens, heads, config.head_dim});
    if (room.copy.is_valid() || !room.dense()) call.refuse(room, "out", "contiguous");
    results = const_cast<char*>(room.data), out_type = room.type;
  }
  AttentionOptions options;
  options.scale = scale;
  options.softcap = softcap;
  options.sink_logits = reinterpret_cast<const float*>(sinks);
  options.observe = observe;
  check(without_gil([&] {
    return serve(*cache, layer, seqs, starts, static_cast<uint32_t>(tokens), keys, values, queries, results, out_type, options);
  }));
}

}  // namespace

void bind_step(nb::class_<Handle>& cache) {
  cache.def("step", &step, nb::arg("layer"), nb::arg("seqs"), nb::arg("starts"), nb::arg("query").none(), nb::arg("key"),
            nb::arg("value"), nb::arg("out").none(), nb::arg("scale"), nb::arg("softcap"), nb::arg("sinks"), nb::arg("stream"),
            nb::arg("observe"));
}

}  // namespace tierkv::python
