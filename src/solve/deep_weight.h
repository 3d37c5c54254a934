// deep_weight.h — which tokens will be read more (calib/deep.h, "Weight").
#pragma once

#include "solve/deep_sample.h"

namespace tierkv::solve {

// The log of the expected rate as a linear function of the features: a gamma regression with a logarithmic link, whose steps are
// least squares with the same matrix every time. (The expected log of the rate is something else: few tokens are ever looked up,
// and which ones chance decides.)
// With too little to learn from every token weighs the same.
void fit_weight(const calib::Statistics& s, const calib::DeepTables& tables, const Centred& x, calib::DeepLayer& out);

}  // namespace tierkv::solve
