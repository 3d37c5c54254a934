// klt.h — finds the bases of calib/klt.h: eigenvectors of the covariance of keys in the metric of errors, and steps by search.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "calib/klt.h"
#include "calib/statistics.h"
#include "solve/progress.h"
#include "tierkv/status.h"

namespace tierkv::solve {

// invalid_argument: too few tokens, or statistics that are not finite or hold nothing.
Result<calib::KltTables> solve_klt(const calib::Statistics& statistics, const Progress& progress);

// What is known of one KV head when its mean and covariance were added up over more keys than a sample has.
struct KltMoments {
  uint32_t dim = 0;
  std::span<const double> mean;        // [dim], of keys in the frame of their blocks
  std::span<const double> covariance;  // [dim][dim]
  std::span<const double> metric;      // [dim][dim], as PairSums::key_block
  std::span<const float> rows;         // [any number][dim]: keys in the frame of their blocks, for the steps
  // How much is taken off what was seen, 0..1: the covariance goes that far towards its diagonal, the metric towards a multiple of
  // the identity with the same trace.
  double covariance_shrink = 0.0, metric_shrink = 0.0;
  uint32_t normal_rows = 0;  // rows of a normal distribution that the steps are fitted on beside `rows`
  double value_unit = 0.0;   // what an error of all the size of the head's values would do
};
// One head's tables. invalid_argument: not finite, or keys that do not vary; `place` names the head in the message. REQUIRES: at
// least one row, normal ones included. One thread, the caller's.
Result<calib::KltHead> solve_klt_head(const KltMoments& moments, const std::string& place);

}  // namespace tierkv::solve
