// synthetic_tables.h — the tables of KVQuant and SQuat of a synthetic model, for tests.
#pragma once

#include "calib/kvquant.h"
#include "calib/squat.h"
#include "calib/synthetic_statistics.h"

namespace tierkv::calib {

inline Result<CalibrationPtr> kvquant_and_squat(const Statistics& s, const SquatOptions& options = {}) {
  auto c = std::make_shared<Calibration>(s, Origin{"synthetic", s.tokens, "test"});
  auto kvquant = solve_kvquant(s, nullptr);
  if (!kvquant.ok()) return kvquant.status();
  c->kvquant = std::make_shared<KvquantTables>(std::move(*kvquant));
  auto squat = solve_squat(s, nullptr, options);
  if (!squat.ok()) return squat.status();
  c->squat = std::make_shared<SquatTables>(std::move(*squat));
  if (Status status = c->finish(); !status.ok()) return status;
  return CalibrationPtr(std::move(c));
}

}  // namespace tierkv::calib
