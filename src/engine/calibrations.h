// calibrations.h — which calibration serves a model: the one that is named, one that was made here, or the one that ships with the
// program.
//
// Looked for in this order, the first that is there is taken:
//   1. the file that the configuration names (`calibration=FILE` in --kv); it must fit, or opening a context fails with the reason
//   2. $TIERKV_CACHE/calibration/<fingerprint>.tkc, where `tierkv calibrate` leaves one unless told otherwise
//   3. the calibration of the default model, which is part of the program
// Engine::calibration() looks, once; 1 and 2 are llama::find_calibration(), which programs that embed the host have too.
#pragma once

#include "tierkv/calibration.h"
#include "tierkv/llama.h"

namespace tierkv::engine {

// The calibration that is part of the program, if it is of this model; or null.
CalibrationPtr shipped_calibration(const llama::ModelShape& shape);

}  // namespace tierkv::engine
