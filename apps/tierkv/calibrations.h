// calibrations.h — which calibration serves a model: the one that is named, one that was made here, or the one that ships with the
// program.
//
// Looked for in this order, the first that is there is taken:
//   1. the file that the configuration names (`calibration=FILE` in --kv); it must fit, or the command ends with the reason
//   2. $TIERKV_CACHE/calibration/<fingerprint>.tkc, where `tierkv calibrate` leaves one unless told otherwise
//   3. the calibration of the default model, which is part of the program
// Engine::calibration() looks, once; 1 and 2 are llama::find_calibration(), which programs that embed the host have too.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine.h"
#include "tierkv/calibration.h"
#include "tierkv/config.h"
#include "tierkv/llama.h"

namespace tierkv::cli {

// The calibration that is part of the program, if it is of this model; or null.
CalibrationPtr shipped_calibration(const llama::ModelShape& shape);

// The least prompt that calibrates a model by itself.
inline constexpr size_t kSelfCalibrationTokens = 4096;

// --self-calibrate: reads the prompt once more, before anything else, to calibrate a model that has no calibration, and keeps the
// result for the next time. Does nothing when there is one, or when no setting of --kv would use it; says so when the prompt is too
// short.
void self_calibrate(Engine& engine, std::span<const llama_token> prompt, const std::vector<std::string>& kv, bool quiet);

// One sentence when `auto` had to make do without a calibration.
void remark_uncalibrated(Engine& engine, Session& session);

}  // namespace tierkv::cli
