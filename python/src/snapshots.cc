// snapshots.cc — sequences to files and bytes and back, and idle sequences.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <list>

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

nb::bytes freeze_run(const Handle& self, SeqId seq, uint32_t first, uint32_t end) {
  const auto bytes = self.get([&](AdaptiveKVCache& cache) { return cache.freeze_run(seq, first, end); });
  return nb::bytes(bytes.data(), bytes.size());
}

SeqId unfreeze_runs(const Handle& self, nb::sequence runs) {
  std::list<Bytes> held;
  std::vector<std::span<const std::byte>> spans;
  for (const nb::handle run : runs) spans.push_back(held.emplace_back(run).span());
  return self.get([&](AdaptiveKVCache& cache) { return cache.unfreeze_runs(spans); });
}

PromotionReport promote(const Handle& self, SeqId seq, uint32_t first, uint32_t count) {
  PromotionReport report;
  self.run([&](AdaptiveKVCache& cache) { return cache.promote(seq, first, count, &report); });
  return report;
}

void demote(const Handle& self, SeqId seq, uint32_t first, uint32_t count) {
  self.run([&](AdaptiveKVCache& cache) { return cache.demote(seq, first, count); });
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
      .def(
          "run_ends", [](const Handle& self, SeqId seq) { return self.get([&](auto& c) { return c.run_ends(seq); }); },
          nb::arg("seq"))
      .def("freeze_run", &freeze_run, nb::arg("seq"), nb::arg("first"), nb::arg("end"))
      .def("unfreeze_runs", &unfreeze_runs, nb::arg("runs"))
      .def("promote", &promote, nb::arg("seq"), nb::arg("first"), nb::arg("count"))
      .def("demote", &demote, nb::arg("seq"), nb::arg("first"), nb::arg("count"))
      .def("park", &park, nb::arg("seq"), nb::arg("options"))
      .def(
          "wake", [](const Handle& self, SeqId seq) { self.run([&](auto& c) { return c.wake(seq); }); }, nb::arg("seq"))
      .def(
          "is_parked", [](const Handle& self, SeqId seq) { return self.get([&](auto& c) { return c.is_parked(seq); }); },
          nb::arg("seq"));
}

}  // namespace tierkv::python
