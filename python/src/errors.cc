#include "errors.h"

#include <nanobind/stl/string.h>

#include <string>

namespace tierkv::python {

nb::object exception_of(const Status& status) {
  nb::object classes = nb::module_::import_("tierkv.errors").attr("CLASSES");
  return classes[nb::int_(static_cast<int>(status.code()))](status.message());
}

void raise(const Status& status) {
  nb::object exception = exception_of(status);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

void raise(StatusCode code, std::string message) { raise(Status(code, std::move(message))); }

}  // namespace tierkv::python
