// squat.h — finds the subspaces of calib/squat.h: eigenvectors of the sums over queries.
#pragma once

#include "calib/squat.h"
#include "calib/statistics.h"
#include "solve/progress.h"
#include "tierkv/status.h"

namespace tierkv::solve {

// The defaults were chosen by measurement (docs/build/measurements.md, "SQuat").
struct SquatOptions {
  uint32_t rank = 20;   // directions kept, as in the paper; cut to head_dim
  double lambda = 0.1;  // with Q'Q over N; the paper's 0.001 goes with Q'Q itself
};

// A layer without queries (its window never reaches the archive) has directions of zero, which is kivi.
// invalid_argument: statistics of the wrong size, not finite, or without a single query.
Result<calib::SquatTables> solve_squat(const calib::Statistics& statistics, const Progress& progress,
                                       const SquatOptions& options = {});

}  // namespace tierkv::solve
