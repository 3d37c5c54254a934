#include "module.h"

NB_MODULE(_core, m) {
  // A cache that a script still holds when Python ends is no leak.
  nanobind::set_leak_warnings(false);
  m.doc() = "tierkv in C++, as the public headers have it. Use the package tierkv, which is made of it.";
  tierkv::python::bind_config(m);
  tierkv::python::bind_reports(m);
  tierkv::python::bind_calibration(m);
  tierkv::python::bind_cache(m);
}
