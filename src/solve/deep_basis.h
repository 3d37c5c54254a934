// deep_basis.h — the metric of one layer's errors and the bases in it (calib/deep.h, "Basis").
#pragma once

#include <vector>

#include "solve/deep_sample.h"

namespace tierkv::solve {

// The roots of the metric, block by block.
struct Roots {
  std::vector<Matrix> metric, root, inverse;  // [2·kv_heads]
};

Roots find_roots(const calib::Statistics& s, uint32_t layer);

// The eigenvectors of a covariance in the metric, largest first.
calib::DeepBasis find_basis(const Matrix& covariance, const Roots& roots);

// One unit for all layers: brings the mean variance of a component to 1, so that steps are near 1 whatever the model.
void normalise(calib::DeepTables& tables, std::vector<Roots>& roots);

// What a decoder would have of the rows at `step`: rows <- the nearest point of the grid, in the basis.
void quantize_rows(const calib::DeepLayer& layer, int which, float step, uint32_t head_dim, Rows& rows);

}  // namespace tierkv::solve
