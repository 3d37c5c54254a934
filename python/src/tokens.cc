// tokens.cc — rows in, attention out, and the calls that look at tokens or shorten sequences.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

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
