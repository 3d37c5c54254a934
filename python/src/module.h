// module.h — the parts of the module tierkv._core, one function for each. The Python files beside it (python/tierkv) are the
// interface for people; what is here is as close to the C++ headers as it can be.
#pragma once

#include <nanobind/nanobind.h>

namespace tierkv::python {

namespace nb = nanobind;

void bind_config(nb::module_& m);
void bind_reports(nb::module_& m);
void bind_calibration(nb::module_& m);
void bind_cache(nb::module_& m);

}  // namespace tierkv::python
