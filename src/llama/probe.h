// probe.h — what an error in one layer does to the model's predictions, measured, beside what the tables say it should do.
//
// The tables weigh an error by how much it moves the residual stream. What becomes of that downstream differs by layer. So a few
// windows of the text are run once in FP16, and then again and again with an error in the archived keys, or values, of one layer:
// the error its own codec makes at kProbeCodec, amplified where it would be lost in the noise, and no further than effects stay
// proportional. The weight of a layer is the KL divergence of the predictions over the distortion that the tables predict.
//
// Cost:     only the scored tokens are computed again: the rows of what comes before them are kept from the FP16 run and put into a
//           sequence of its own.
// Floor:    weights of 4 bits make predictions jump when anything is rounded differently. Some layers are run with next to no error
//           to see how far.
// Threads:  one call at a time on a model; the same result for the same number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "llama/collect.h"
#include "tierkv/calibrate.h"
#include "tierkv/calibration.h"

namespace tierkv::llama {

inline constexpr const char* kProbeCodec = "klt1";

// One side of one layer. The layer was not probed when distortion is 0: it has no archive, or the tables see no error in it.
struct ProbeEffect {
  double divergence = 0.0;                // mean KL divergence from FP16's predictions, in nats
  double error = 0.0;                     // its standard error
  double floor = 0.0, floor_error = 0.0;  // what an error of next to nothing gives, and its standard error
  double distortion = 0.0;                // predicted by the tables, in their units
};

struct ProbeEffects {
  std::vector<ProbeEffect> keys, values;  // of each layer
};

// REQUIRES: windows as calibration_windows() makes them for these options. failed_precondition: cancelled.
Result<ProbeEffects> probe(const ModelShape& shape, const std::vector<TokenList>& windows, const CalibrationPtr& tables,
                           const CalibrateOptions& options);

// Weights for distortions: effect over prediction, drawn towards 1 as far as noise makes it doubtful, at most kMostWeight times
// more or less than average, then scaled to a geometric mean of 1 over all that were probed. All 1 when nothing was heard above the
// floor.
inline constexpr double kMostWeight = 4.0;
struct LayerWeights {
  std::vector<double> keys, values;  // of each layer
};
LayerWeights weights_of(const ProbeEffects& effects);

}  // namespace tierkv::llama
