// tokens.cc — rows in, attention out, and the calls that look at tokens or shorten sequences.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "arrays.h"
#include "handle.h"

namespace tierkv::python {
namespace {

void append(const Handle& self, SeqId seq, uint32_t layer, nb::handle keys, nb::handle values, uint64_t stream) {
  const Places places{self.device(), stream};
  const Rows k = rows_of(keys, "keys", places), v = rows_of(values, "values", places);
  self.run([&](AdaptiveKVCache& cache) { return cache.append(seq, layer, k.view, v.view); });
}

// An exception or None for each item.
template <class Item>
nb::list failures_of(const std::vector<Item>& items) {
  nb::list failures;
  for (const Item& item : items) failures.append(item.status.ok() ? nb::none() : exception_of(item.status));
  return failures;
}

nb::list append_many(const Handle& self, uint32_t layer, const std::vector<SeqId>& seqs, nb::list keys, nb::list values,
                     uint64_t stream) {
  const Handle::Shared cache = self.live();
  const Places places{self.device(), stream};
  std::vector<Rows> rows;
  std::vector<AppendItem> items;
  for (size_t i = 0; i < seqs.size(); ++i) {
    rows.push_back(rows_of(keys[i], "keys", places));
    rows.push_back(rows_of(values[i], "values", places));
    items.push_back({seqs[i], rows[2 * i].view, rows[2 * i + 1].view, {}});
  }
  const Status all = without_gil([&] { return cache->append_many(layer, items); });
  if (!all.ok() && items.empty()) raise(all);
  return failures_of(items);
}

// Options that calls for one and for many sequences share; holds the sinks' array.
struct Options {
  AttentionOptions options;
  Floats sinks;

  Options(const CacheConfig& config, bool causal, float scale, float softcap, nb::handle sink_logits, bool observe) {
    options.causal = causal;
    options.scale = scale;
    options.softcap = softcap;
    options.observe = observe;
    if (sink_logits.is_none()) return;
    sinks = floats_of(sink_logits, config.query_heads(), "sink_logits");
    options.sink_logits = sinks.data();
  }
};

void attention(const Handle& self, SeqId seq, uint32_t layer, nb::handle queries, nb::handle out, bool causal, float scale,
               float softcap, int64_t first_position, nb::handle sink_logits, bool observe, MassReport* mass, uint64_t stream) {
  Options given(self.live()->config(), causal, scale, softcap, sink_logits, observe);
  given.options.first_position = first_position;
  given.options.mass = mass;
  const Places places{self.device(), stream};
  const Rows rows = rows_of(queries, "queries", places);
  const Results result = results_of(out, rows.view, places);
  self.run([&](AdaptiveKVCache& cache) { return cache.attention(seq, layer, rows.view, result.data, given.options); });
}

// Attention for many sequences.
nb::list attention_many(const Handle& self, uint32_t layer, const std::vector<SeqId>& seqs, nb::list queries, nb::list outs,
                        const std::vector<int64_t>& first_positions, nb::list masses, bool causal, float scale, float softcap,
                        nb::handle sink_logits, bool observe, uint64_t stream) {
  const Handle::Shared cache = self.live();
  const Places places{self.device(), stream};
  Options given(cache->config(), causal, scale, softcap, sink_logits, observe);
  std::vector<Rows> rows;
  std::vector<Results> results;
  std::vector<AttentionItem> items;
  for (size_t i = 0; i < seqs.size(); ++i) {
    rows.push_back(rows_of(queries[i], "queries", places));
    results.push_back(results_of(outs[i], rows.back().view, places));
    MassReport* mass = masses[i].is_none() ? nullptr : nb::cast<MassReport*>(masses[i]);
    items.push_back({seqs[i], rows.back().view, results.back().data, first_positions[i], mass, {}});
  }
  const Status all = without_gil([&] { return cache->attention(layer, items, given.options); });
  if (!all.ok() && items.empty()) raise(all);
  return failures_of(items);
}

// One layer of one step of a batch, for hosts that know what they have: rows [batch][heads][tokens][head_dim] by address and
// strides in elements; with a stream, on the cache's device.
struct BatchRows {
  uintptr_t address;
  int64_t batch_stride, head_stride, token_stride;
  uint32_t heads, head_dim;
  DType type;
  MemoryPlace place;
  void* stream;

  RowsView row(size_t b, uint32_t first, uint32_t count) const {
    const int64_t size = type == DType::f32 ? 4 : 2;
    const int64_t offset = static_cast<int64_t>(b) * batch_stride + static_cast<int64_t>(first) * token_stride;
    RowsView view{reinterpret_cast<const char*>(address) + offset * size, type, count, heads, head_dim};
    view.token_stride = token_stride;
    view.head_stride = head_stride;
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
// Appends and attends; out is [batch][tokens][query heads][head_dim], float32. Without room for results it only appends.
Status serve(AdaptiveKVCache& cache, uint32_t layer, const std::vector<SeqId>& seqs, const std::vector<uint32_t>& starts,
             uint32_t tokens, const BatchRows& keys, const BatchRows& values, const BatchRows& queries, float* out,
             const AttentionOptions& options) {
  const uint32_t chunk = tokens == 1 ? 1 : out == nullptr ? kStored : chunk_of(cache.config(), layer);
  const size_t row_size = size_t{queries.heads} * queries.head_dim;
  std::vector<AppendItem> rows;
  std::vector<AttentionItem> items;
  for (uint64_t done = 0; done < tokens; done += chunk) {
    rows.clear();
    items.clear();
    for (size_t b = 0; b < seqs.size(); ++b) {
      const uint64_t first = done + (starts.empty() ? 0 : starts[b]);
      if (first >= tokens) continue;
      const auto from = static_cast<uint32_t>(first), count = std::min(chunk, tokens - from);
      rows.push_back({seqs[b], keys.row(b, from, count), values.row(b, from, count), {}});
      if (out == nullptr) continue;
      items.push_back({seqs[b], queries.row(b, from, count), out + (b * tokens + from) * row_size, -1, nullptr, {}});
    }
    if (rows.empty()) break;
    if (Status status = cache.append_many(layer, rows); !status.ok()) return status;
    if (out == nullptr) continue;
    if (Status status = cache.attention(layer, items, options); !status.ok()) return status;
  }
  return {};
}

void step(const Handle& self, uint32_t layer, const std::vector<SeqId>& seqs, const std::vector<uint32_t>& starts, uint32_t tokens,
          int type, uintptr_t k, int64_t kb, int64_t kh, int64_t kt, uintptr_t v, int64_t vb, int64_t vh, int64_t vt, uintptr_t q,
          int64_t qb, int64_t qh, int64_t qt, uintptr_t out, float scale, float softcap, uintptr_t sink_logits, int64_t stream,
          bool observe) {
  const Handle::Shared cache = self.live();
  const CacheConfig& config = cache->config();
  if (layer >= config.num_layers) raise(StatusCode::out_of_range, "layer " + std::to_string(layer) + " is past the last");
  const DType dtype = static_cast<DType>(type);
  const MemoryPlace place = stream < 0 ? MemoryPlace::host : MemoryPlace::device;
  void* const after = stream < 0 ? nullptr : reinterpret_cast<void*>(static_cast<uintptr_t>(stream));
  const BatchRows keys{k, kb, kh, kt, config.num_kv_heads, config.head_dim, dtype, place, after};
  const BatchRows values{v, vb, vh, vt, config.num_kv_heads, config.head_dim, dtype, place, after};
  const BatchRows queries{q, qb, qh, qt, config.query_heads(), config.head_dim, dtype, place, after};
  AttentionOptions options;
  options.scale = scale;
  options.softcap = softcap;
  options.sink_logits = reinterpret_cast<const float*>(sink_logits);
  options.observe = observe;
  check(without_gil(
      [&] { return serve(*cache, layer, seqs, starts, tokens, keys, values, queries, reinterpret_cast<float*>(out), options); }));
}

void get_rows(const Handle& self, SeqId seq, uint32_t layer, const std::vector<uint32_t>& positions, nb::handle keys,
              nb::handle values) {
  const CacheConfig config = self.live()->config();
  const size_t size = positions.size() * config.num_kv_heads * config.head_dim;
  Floats k, v;
  if (!keys.is_none()) k = floats_of(keys, size, "keys");
  if (!values.is_none()) v = floats_of(values, size, "values");
  float* key_data = keys.is_none() ? nullptr : k.data();
  float* value_data = values.is_none() ? nullptr : v.data();
  self.run([&](AdaptiveKVCache& cache) { return cache.get(seq, layer, positions, key_data, value_data); });
}

// The hot rows as bytes: a view would dangle as soon as the sequence changes.
nb::tuple hot_view(const Handle& self, SeqId seq, uint32_t layer, uint32_t kv_head) {
  const HotView view = self.get([&](AdaptiveKVCache& cache) { return cache.hot_view(seq, layer, kv_head); });
  const size_t bytes = size_t{view.rows} * view.head_dim * sizeof(uint16_t);
  return nb::make_tuple(nb::bytes(view.keys, bytes), nb::bytes(view.values, bytes), view.rows, view.head_dim, view.first_position);
}

}  // namespace

void bind_tokens(nb::class_<Handle>& cache) {
  cache
      .def("append", &append, nb::arg("seq"), nb::arg("layer"), nb::arg("keys").none(), nb::arg("values").none(), nb::arg("stream"))
      .def("append_many", &append_many, nb::arg("layer"), nb::arg("seqs"), nb::arg("keys"), nb::arg("values"), nb::arg("stream"))
      .def("attention", &attention, nb::arg("seq"), nb::arg("layer"), nb::arg("queries").none(), nb::arg("out").none(),
           nb::arg("causal"), nb::arg("scale"), nb::arg("softcap"), nb::arg("first_position"), nb::arg("sink_logits").none(),
           nb::arg("observe"), nb::arg("mass").none(), nb::arg("stream"))
      .def("attention_many", &attention_many, nb::arg("layer"), nb::arg("seqs"), nb::arg("queries"), nb::arg("outs"),
           nb::arg("first_positions"), nb::arg("masses"), nb::arg("causal"), nb::arg("scale"), nb::arg("softcap"),
           nb::arg("sink_logits").none(), nb::arg("observe"), nb::arg("stream"))
      .def("step", &step)
      .def("get", &get_rows, nb::arg("seq"), nb::arg("layer"), nb::arg("positions"), nb::arg("keys").none(),
           nb::arg("values").none())
      .def(
          "truncate",
          [](const Handle& self, SeqId seq, uint32_t length) { self.run([&](auto& c) { return c.truncate(seq, length); }); },
          nb::arg("seq"), nb::arg("length"))
      .def(
          "evict", [](const Handle& self, SeqId seq, uint32_t tokens) { self.run([&](auto& c) { return c.evict(seq, tokens); }); },
          nb::arg("seq"), nb::arg("tokens"))
      .def("flush", [](const Handle& self) { self.run([](auto& c) { return c.flush(); }); })
      .def(
          "length", [](const Handle& self, SeqId seq) { return self.get([&](auto& c) { return c.length(seq); }); }, nb::arg("seq"))
      .def(
          "layer_length",
          [](const Handle& self, SeqId seq, uint32_t layer) { return self.get([&](auto& c) { return c.length(seq, layer); }); },
          nb::arg("seq"), nb::arg("layer"))
      .def(
          "positions",
          [](const Handle& self, SeqId seq, uint32_t layer, uint32_t kv_head) {
            return self.get([&](auto& c) { return c.positions(seq, layer, kv_head); });
          },
          nb::arg("seq"), nb::arg("layer"), nb::arg("kv_head"))
      .def("hot_view", &hot_view, nb::arg("seq"), nb::arg("layer"), nb::arg("kv_head"));
}

}  // namespace tierkv::python
