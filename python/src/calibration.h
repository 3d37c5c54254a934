// calibration.h — a calibration as Python holds it: the shared tables, whose class only the library knows.
#pragma once

#include "tierkv/calibration.h"

namespace tierkv::python {

struct Calibration {
  CalibrationPtr tables;
};

}  // namespace tierkv::python
