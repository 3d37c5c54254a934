// squat.h — finds the subspaces of calib/squat.h: eigenvectors of the sums over queries.
#pragma once

#include "calib/squat.h"
#include "calib/statistics.h"
#include "solve/progress.h"
#include "tierkv/status.h"

namespace tierkv::solve {

// On SmolLM2 at 2 bits, kivi = 1: errors as queries see them / in the metric of calibration (key_plain) on other text, one channel
// a step:
//   rank 20: lambda 0.01 0.83 / 0.86, 0.1 0.69 / 0.79, 1 0.70 / 0.83, 10 1.47 / 1.16; rank 5 at 0.1 0.70 / 0.79, rank 64 at 1 0.67
//   / 0.80.
struct SquatOptions {
  uint32_t rank = 20;   // directions kept, as in the paper; cut to head_dim
  double lambda = 0.1;  // with Q'Q over N; the paper's 0.001 goes with Q'Q itself
};

// A layer without queries (its window never reaches the archive) has directions of zero, which is kivi.
// invalid_argument: statistics of the wrong size, not finite, or without a single query.
Result<calib::SquatTables> solve_squat(const calib::Statistics& statistics, const Progress& progress,
                                       const SquatOptions& options = {});

}  // namespace tierkv::solve
