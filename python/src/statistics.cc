// statistics.cc — memory, quality, adaptation, calibration and learning of a cache.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "arrays.h"
#include "calibration.h"
#include "handle.h"

namespace tierkv::python {
namespace {

// ropes: of each layer, (a, b, angle) of each pair. grams: of each layer an array of [query heads, head_dim, head_dim] or None.
void learn(const Handle& self, std::string name, uint64_t fingerprint, const std::vector<RopeTriples>& ropes, nb::list grams,
           uint64_t tokens, std::string path) {
  const CacheConfig config = self.live()->config();
  LearningModel model;
  model.name = std::move(name);
  model.fingerprint = fingerprint;
  model.ropes = ropes_of(ropes);
  const size_t gram_size = size_t{config.query_heads()} * config.head_dim * config.head_dim;
  for (nb::handle layer : grams) {
    std::vector<float>& gram = model.grams.emplace_back();
    if (layer.is_none()) continue;
    const Floats floats = floats_of(layer, gram_size, "grams");
    gram.assign(floats.data(), floats.data() + gram_size);
  }
  self.run([&](AdaptiveKVCache& cache) { return cache.learn(std::move(model), {tokens, std::move(path)}); });
}

nb::object calibration_of(const Handle& self) {
  CalibrationPtr tables = self.ask([](AdaptiveKVCache& cache) { return cache.calibration(); });
  return tables ? nb::cast(Calibration{std::move(tables)}) : nb::none();
}

}  // namespace

void bind_statistics(nb::class_<Handle>& cache) {
  cache.def("memory_usage", [](const Handle& self) { return self.ask([](auto& c) { return c.memory_usage(); }); })
      .def("cold_usage", [](const Handle& self) { return self.ask([](auto& c) { return c.cold_usage(); }); })
      .def(
          "sequence_memory_usage",
          [](const Handle& self, SeqId seq) { return self.get([&](auto& c) { return c.memory_usage(seq); }); }, nb::arg("seq"))
      .def("quality_metrics", [](const Handle& self) { return self.ask([](auto& c) { return c.quality_metrics(); }); })
      .def(
          "verify", [](const Handle& self, SeqId seq) { self.run([&](auto& c) { return c.verify(seq); }); }, nb::arg("seq"))
      .def(
          "adapt_thresholds",
          [](const Handle& self, double score) { self.run([&](auto& c) { return c.adapt_thresholds({score}); }); },
          nb::arg("score"))
      .def("thresholds", [](const Handle& self) { return self.ask([](auto& c) { return c.thresholds(); }); })
      .def(
          "set_thresholds",
          [](const Handle& self, const std::vector<LayerThresholds>& given) {
            self.run([&](auto& c) { return c.set_thresholds(given); });
          },
          nb::arg("thresholds"))
      .def(
          "save_thresholds",
          [](const Handle& self, const std::string& path) { self.run([&](auto& c) { return c.save_thresholds(path); }); },
          nb::arg("path"))
      .def(
          "load_thresholds",
          [](const Handle& self, const std::string& path) { self.run([&](auto& c) { return c.load_thresholds(path); }); },
          nb::arg("path"))
      .def(
          "set_calibration",
          [](const Handle& self, const Calibration& given) { self.run([&](auto& c) { return c.set_calibration(given.tables); }); },
          nb::arg("calibration"))
      .def("calibration", &calibration_of)
      .def("learn", &learn, nb::arg("name"), nb::arg("fingerprint"), nb::arg("ropes"), nb::arg("grams"), nb::arg("tokens"),
           nb::arg("path"))
      .def("learning", [](const Handle& self) { return self.ask([](auto& c) { return c.learning(); }); })
      .def(
          "set_residual",
          [](const Handle& self, uint32_t layer, double mean_square) {
            const Handle::Shared cache = self.live();
            without_gil([&] { cache->set_residual(layer, mean_square); });
          },
          nb::arg("layer"), nb::arg("mean_square"))
      .def(
          "archive_codec",
          [](const Handle& self, uint32_t layer) { return self.ask([&](auto& c) { return c.archive_codec(layer); }); },
          nb::arg("layer"));
}

}  // namespace tierkv::python
