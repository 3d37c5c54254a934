// shipped_calibration.h — the calibrations that are part of the library: every data/calibration/*.tkc of the source, which
// cmake/ShippedCalibrations.cmake puts into it.
//
// Memory:   the bytes lie in the library's file; a calibration made from them reads its tables there when a codec needs some.
// Threads:  any.
#pragma once

#include <cstddef>
#include <span>

#include "tierkv/calibration.h"

namespace tierkv::llama {

// The files as they were; generated.
std::span<const std::span<const std::byte>> shipped_files();

// All of them, each parsed once in a process. An error is a lack of memory, and the next call tries again.
Result<std::span<const CalibrationPtr>> shipped_calibrations();

}  // namespace tierkv::llama
