// deep_prediction.h — a layer from what a decoder has of those before it (calib/deep.h, "Predict").
#pragma once

#include <vector>

#include "solve/deep_basis.h"

namespace tierkv::solve {

// The step at which the plain bases take an ordinary number of bits: about where archives work, and predictions are fitted.
double training_step(const calib::DeepTables& tables);

// Predicts a layer from what the decoder has of those before it. `sources`: [sampled][sources·dim] of them; on return `rows`, the
// true rows less their mean, are what the decoder would have of this layer.
void solve_prediction(const calib::DeepTables& tables, const Roots& roots, const Rows& sources,
                      const std::vector<const calib::DeepLayer*>& from, float step, calib::DeepLayer& out, Rows& rows);

}  // namespace tierkv::solve
