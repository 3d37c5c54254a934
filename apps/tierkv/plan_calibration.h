// plan_calibration.h — the calibration that a run of a model would use, for `tierkv plan`.
#pragma once

#include <string>

#include "engine/gguf_file.h"
#include "engine_names.h"
#include "tierkv/calibration.h"
#include "tierkv/llama.h"

namespace tierkv::cli {

// Or null: the setting needs none, or there is none. A model is loaded only when some calibration that is here is of its shape:
// which model it is of, the header does not tell.
CalibrationPtr plan_calibration(const GgufFile& file, const std::string& kv, const llama::RopeSettings& rope);

}  // namespace tierkv::cli
