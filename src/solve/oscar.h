// oscar.h — finds the rotations of calib/oscar.h.
#pragma once

#include "calib/oscar.h"
#include "calib/statistics.h"
#include "solve/progress.h"
#include "tierkv/status.h"

namespace tierkv::solve {

// A layer without queries (its window never reaches the archive) has Hadamard transforms alone.
// invalid_argument: statistics of the wrong size or not finite.
Result<calib::OscarTables> solve_oscar(const calib::Statistics& statistics, const Progress& progress);

}  // namespace tierkv::solve
