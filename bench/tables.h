// tables.h — calibrated tables for the cases, so that codecs which need some are measured beside the others: learnt from rows like
// those that are measured.
#pragma once

#include <cstdint>

#include "bench/data.h"
#include "bench/shapes.h"
#include "tierkv/calibration.h"
#include "tierkv/status.h"

namespace tierkv::bench {

// Of one layer and one KV head whose keys are rows of `shape`, others than the cases measure. Solved once a program and shape.
Result<CalibrationPtr> tables_of(Shape shape, uint32_t dim);
// Of one layer with the heads of `rows`, keys and values as they are there.
Result<CalibrationPtr> tables_of(const SourceRows& rows);

}  // namespace tierkv::bench
