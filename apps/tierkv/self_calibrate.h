// self_calibrate.h — --self-calibrate, and a remark where a calibration is missing.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine_names.h"

namespace tierkv::cli {

// Reads the prompt once more, before anything else, to calibrate a model that has no calibration, and keeps the result for the
// next time. Does nothing when there is one, or when no setting of --kv would use it; says so when the prompt is too short.
void self_calibrate(Engine& engine, std::span<const llama_token> prompt, const std::vector<std::string>& kv, bool quiet);

// One sentence when `auto` had to make do without a calibration.
void remark_uncalibrated(Engine& engine, Session& session);

}  // namespace tierkv::cli
