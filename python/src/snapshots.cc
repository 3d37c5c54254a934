// snapshots.cc — sequences to files and bytes and back, and idle sequences.
#include <nanobind/stl/string.h>

#include "arrays.h"
#include "handle.h"

namespace tierkv::python {
namespace {

void save(const Handle& self, SeqId seq, const std::string& path, const DeepOptions* deep, DeepReport* report) {
  self.run([&](AdaptiveKVCache& cache) { return deep ? cache.save(seq, path, *deep, report) : cache.save(seq, path); });
}

nb::bytes freeze(const Handle& self, SeqId seq, const DeepOptions* deep, DeepReport* report) {
  const auto bytes = self.get([&](AdaptiveKVCache& cache) { return deep ? cache.freeze(seq, *deep, report) : cache.freeze(seq); });
  return nb::bytes(bytes.data(), bytes.size());
}

SeqId unfreeze(const Handle& self, nb::handle bytes) {
  const Bytes held(bytes);
  return self.get([&](AdaptiveKVCache& cache) { return cache.unfreeze(held.span()); });
}

DeepReport park(const Handle& self, SeqId seq, const DeepOptions& options) {
  DeepReport report;
  self.run([&](AdaptiveKVCache& cache) { return cache.park(seq, options, &report); });
  return report;
}

}  // namespace

void bind_snapshots(nb::class_<Handle>& cache) {
  cache.def("save", &save, nb::arg("seq"), nb::arg("path"), nb::arg("deep").none(), nb::arg("report").none())
      .def(
          "load", [](const Handle& self, const std::string& path) { return self.get([&](auto& c) { return c.load(path); }); },
          nb::arg("path"))
      .def("freeze", &freeze, nb::arg("seq"), nb::arg("deep").none(), nb::arg("report").none())
      .def("unfreeze", &unfreeze, nb::arg("bytes"))
      .def("park", &park, nb::arg("seq"), nb::arg("options"))
      .def(
          "wake", [](const Handle& self, SeqId seq) { self.run([&](auto& c) { return c.wake(seq); }); }, nb::arg("seq"))
      .def(
          "is_parked", [](const Handle& self, SeqId seq) { return self.get([&](auto& c) { return c.is_parked(seq); }); },
          nb::arg("seq"));
}

}  // namespace tierkv::python
