// calibrations.h — whether a model lacks a calibration, and one made from a prompt.
//
// Which one serves a model is llama::find_calibration()'s to say, as for programs that embed the host: the file that the
// configuration names, $TIERKV_CACHE/calibration/<fingerprint>.tkc, where `tierkv calibrate` leaves one, or one that ships with the
// library. Engine::calibration() looks, once.
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

// True if one of the settings would use a calibration and the model has none.
bool lacks_calibration(Engine& engine, const std::vector<std::string>& kv);

// The least prompt that calibrates a model by itself.
inline constexpr size_t kSelfCalibrationTokens = 4096;

// Reads a prompt once more to calibrate the model from it, and keeps the result in `path` for the next time. `on_progress` gets the
// share that is done. Throws Cancelled; what else goes wrong is in the result, because a model runs without a calibration.
Result<llama::CalibrateReport> calibrate_from_prompt(Engine& engine, std::span<const llama_token> prompt, const std::string& path,
                                                     const std::function<void(double share)>& on_progress);

}  // namespace tierkv::engine
