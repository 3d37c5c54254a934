// calibrations.h — which calibration serves a model: the one that is named, one that was made here, or the one that ships with the program.
//
// Looked for in this order, the first that is there is taken:
//   1. the file that the configuration names (`calibration=FILE` in --kv); it must fit, or the command ends with the reason
//   2. $TIERKV_CACHE/calibration/<fingerprint>.tkc, where `tierkv calibrate` leaves one unless told otherwise
//   3. the calibration of the default model, which is part of the program
// Threads:  pure, but for the files.
#pragma once

#include <string>
#include <vector>

#include "engine.h"
#include "tierkv/calibration.h"
#include "tierkv/config.h"
#include "tierkv/llama.h"

namespace tierkv::cli {

// Where a calibration of this model is kept by default.
std::string calibration_path(const llama::ModelShape& shape);

// Null when there is none. Throws Failure for one that was named and does not fit, and for one that is damaged.
CalibrationPtr find_calibration(const CacheConfig& config, const llama::ModelShape& shape);

// The least prompt that calibrates a model by itself.
inline constexpr size_t kSelfCalibrationTokens = 4096;

// --self-calibrate: reads the prompt once more, before anything else, to calibrate a model that has no calibration, and keeps the result for the
// next time. Does nothing when there is one; says so when the prompt is too short.
void self_calibrate(Engine& engine, const std::vector<int32_t>& prompt, const std::string& kv, bool quiet);

// One sentence when `auto` had to make do without a calibration.
void remark_uncalibrated(Engine& engine, Session& session);

}  // namespace tierkv::cli
