// klt.h — finds the bases of calib/klt.h: eigenvectors of the covariance of keys in the metric of errors, and steps by search.
#pragma once

#include "calib/klt.h"
#include "calib/statistics.h"
#include "solve/progress.h"
#include "tierkv/status.h"

namespace tierkv::solve {

// invalid_argument: too few tokens, or statistics that are not finite or hold nothing.
Result<calib::KltTables> solve_klt(const calib::Statistics& statistics, const Progress& progress);

}  // namespace tierkv::solve
