// testing.h — calibrations of a synthetic model (calib/synthetic_statistics.h), for tests of any room.
#pragma once

#include "calib/calibration.h"
#include "calib/synthetic_statistics.h"
#include "solve/deep.h"
#include "solve/klt.h"
#include "solve/kvquant.h"
#include "solve/squat.h"

namespace tierkv::solve {

// With a section for klt.
inline Result<CalibrationPtr> klt_calibration(const calib::Statistics& s) {
  auto c = std::make_shared<calib::Calibration>(s, calib::Origin{"synthetic", s.tokens, "test"});
  auto klt = solve_klt(s, nullptr);
  if (!klt.ok()) return klt.status();
  c->klt = std::make_shared<calib::KltTables>(std::move(*klt));
  if (Status status = c->finish(); !status.ok()) return status;
  return CalibrationPtr(std::move(c));
}

inline Result<CalibrationPtr> kvquant_and_squat(const calib::Statistics& s, const SquatOptions& options = {}) {
  auto c = std::make_shared<calib::Calibration>(s, calib::Origin{"synthetic", s.tokens, "test"});
  auto kvquant = solve_kvquant(s, nullptr);
  if (!kvquant.ok()) return kvquant.status();
  c->kvquant = std::make_shared<calib::KvquantTables>(std::move(*kvquant));
  auto squat = solve_squat(s, nullptr, options);
  if (!squat.ok()) return squat.status();
  c->squat = std::make_shared<calib::SquatTables>(std::move(*squat));
  if (Status status = c->finish(); !status.ok()) return status;
  return CalibrationPtr(std::move(c));
}

}  // namespace tierkv::solve
