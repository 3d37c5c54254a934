// deep.h — finds the tables of calib/deep.h: each layer by itself, then each predicted from what a decoder has of those before it.
#pragma once

#include "calib/deep.h"
#include "calib/statistics.h"
#include "solve/progress.h"
#include "tierkv/status.h"

namespace tierkv::solve {

// Threads: as many as the processor has; the result does not depend on their number.
// invalid_argument: too few tokens, or statistics that are not finite or hold nothing.
Result<calib::DeepTables> solve_deep(const calib::Statistics& statistics, const Progress& progress);

}  // namespace tierkv::solve
