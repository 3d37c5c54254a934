// kvquant.h — finds the ranges and codebooks of calib/kvquant.h, as its header says.
#pragma once

#include "calib/kvquant.h"
#include "calib/statistics.h"
#include "solve/progress.h"
#include "tierkv/status.h"

namespace tierkv::solve {

// invalid_argument: too few tokens, or statistics that are not finite or of the wrong size.
Result<calib::KvquantTables> solve_kvquant(const calib::Statistics& statistics, const Progress& progress);

}  // namespace tierkv::solve
