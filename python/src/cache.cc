// cache.cc — AdaptiveKVCache (tierkv/cache.h): making one, its sequences, memory pressure. Tokens, statistics and snapshots are in
// files of their own.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "calibration.h"
#include "handle.h"
#include "module.h"

namespace tierkv::python {

void Handle::close() {
  Shared last = std::move(cache_);
  cache_.reset();
  handler_.reset();
  without_gil([&] {
    device_.reset();
    last.reset();
  });
}

void Handle::set_pressure_handler(nb::object handler) {
  const Shared cache = live();
  if (handler.is_none()) {
    check(cache->set_pressure_handler({}));
    handler_.reset();
    return;
  }
  if (!PyCallable_Check(handler.ptr()))
    raise(StatusCode::invalid_argument, "a pressure handler is a function of a MemoryPressure that returns whether to try again");
  handler_ = std::move(handler);
  // `this` outlives every call on the cache: the bound method that makes the call holds it.
  check(cache->set_pressure_handler([this](const MemoryPressure& pressure) {
    nb::gil_scoped_acquire acquire;
    nb::object asked = handler_;
    if (!asked.is_valid()) return false;
    try {
      return nb::cast<bool>(nb::bool_(asked(pressure)));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("the pressure handler of a tierkv cache");
      return false;
    }
  }));
}

namespace {

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (nb::inst_ready(self)) {
    PyObject* handler = nb::inst_ptr<Handle>(self)->pressure_handler().ptr();
    Py_VISIT(handler);
  }
  return 0;
}

int clear(PyObject* self) {
  nb::inst_ptr<Handle>(self)->forget_handler();
  return 0;
}

PyType_Slot kSlots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {Py_tp_clear, reinterpret_cast<void*>(clear)}, {0, nullptr}};

void make(Handle* self, const CacheConfig& config, const Calibration* calibration) {
  const CalibrationPtr tables = calibration ? calibration->tables : nullptr;
  auto made = take(without_gil([&] { return AdaptiveKVCache::create(config, tables); }));
  new (self) Handle(Handle::Shared(std::move(made)));
}

void bind_sequences(nb::class_<Handle>& cache) {
  cache.def("config", [](const Handle& self) { return self.live()->config(); })
      .def("close", &Handle::close)
      .def("closed", &Handle::closed)
      .def("set_pressure_handler", &Handle::set_pressure_handler, nb::arg("handler").none())
      .def("add_sequence", [](const Handle& self) { return self.get([](auto& cache) { return cache.add_sequence(); }); })
      .def(
          "fork", [](const Handle& self, SeqId seq) { return self.get([&](auto& cache) { return cache.fork(seq); }); },
          nb::arg("seq"))
      .def(
          "remove", [](const Handle& self, SeqId seq) { self.run([&](auto& cache) { return cache.remove(seq); }); }, nb::arg("seq"))
      .def("sequences", [](const Handle& self) { return self.ask([](auto& cache) { return cache.sequences(); }); });
}

}  // namespace

void bind_cache(nb::module_& m) {
  nb::class_<Handle> cache(m, "Cache", nb::type_slots(kSlots), "AdaptiveKVCache of tierkv/cache.h.");
  cache.def("__init__", &make, nb::arg("config"), nb::arg("calibration").none());
  bind_sequences(cache);
  bind_tokens(cache);
  bind_step(cache);
  bind_statistics(cache);
  bind_snapshots(cache);
  bind_device(m, cache);
}

}  // namespace tierkv::python
