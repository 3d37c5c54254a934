// calibrations.h — which calibration serves a model: the one that is named, one that was made here, or the one that ships with the
// program.
//
// Looked for in this order, the first that is there is taken:
//   1. the file that the configuration names (`calibration=FILE` in --kv); it must fit, or opening a context fails with the reason
//   2. $TIERKV_CACHE/calibration/<fingerprint>.tkc, where `tierkv calibrate` leaves one unless told otherwise
//   3. the calibration of the default model, which is part of the program
// Engine::calibration() looks, once; 1 and 2 are llama::find_calibration(), which programs that embed the host have too.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/tokenizer.h"
#include "tierkv/calibrate.h"
#include "tierkv/calibration.h"
#include "tierkv/config.h"
#include "tierkv/llama.h"

namespace tierkv::engine {

class Engine;

// The calibration that is part of the program, if it is of this model; or null.
CalibrationPtr shipped_calibration(const llama::ModelShape& shape);

// True if one of the settings would use a calibration and the model has none.
bool lacks_calibration(Engine& engine, const std::vector<std::string>& kv);

// The least prompt that calibrates a model by itself.
inline constexpr size_t kSelfCalibrationTokens = 4096;

// Reads a prompt once more to calibrate the model from it, and keeps the result in `path` for the next time. `on_progress` gets the
// share that is done. Throws Cancelled; what else goes wrong is in the result, because a model runs without a calibration.
Result<llama::CalibrateReport> calibrate_from_prompt(Engine& engine, std::span<const llama_token> prompt, const std::string& path,
                                                     const std::function<void(double share)>& on_progress);

}  // namespace tierkv::engine
