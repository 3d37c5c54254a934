// errors.h — a Status becomes a Python exception: the class of its code (tierkv/errors.py) with its sentence.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "tierkv/status.h"

namespace tierkv::python {

namespace nb = nanobind;

// The exception for a status that is not ok, made and not raised.
nb::object exception_of(const Status& status);
// Raises it. The caller holds the GIL.
[[noreturn]] void raise(const Status& status);
[[noreturn]] void raise(StatusCode code, std::string message);

inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}

template <class T>
T take(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return std::move(result).value();
}

// Runs what works without the GIL, so that other Python threads go on meanwhile.
template <class Work>
auto without_gil(Work&& work) {
  nb::gil_scoped_release release;
  return work();
}

}  // namespace tierkv::python
