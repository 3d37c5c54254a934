// plan_measure.h — what a sequence of a given length takes, found by filling real caches: of one layer and one KV head, or of the
// whole model where a calibration gives every head its own bits.
//
// Nothing is guessed from bit widths: scales, block headers and rows waiting for a full block are in the figures. A long sequence
// is measured at about kMeasured tokens and grows from there by what whole blocks of the oldest tier take. Without a calibration
// layers with the same settings are measured once.
#pragma once

#include <cstdint>
#include <string>

#include "tierkv/calibration.h"
#include "tierkv/config.h"
#include "tierkv/stats.h"

namespace tierkv::cli {

inline constexpr uint32_t kMeasured = 8192;

struct PlanTier {
  double tokens = 0;  // of one layer and head, averaged over layers
  double bytes = 0;   // of all layers and heads
};

struct SequencePlan {
  PlanTier tier[kNumTiers];
  double bookkeeping_bytes = 0;
  double total_bytes = 0;
  double fp16_bytes = 0;  // FP16 rows of the tokens that each layer attends to: those of its window where it has one
};

// With a calibration the archive is what a run with it has; its tables, which all sequences share, are not counted.
// REQUIRES: validate(config) is ok; the calibration is of a model of that shape.
SequencePlan measure_sequence(const CacheConfig& config, uint64_t tokens, const CalibrationPtr& calibration = nullptr);

}  // namespace tierkv::cli
