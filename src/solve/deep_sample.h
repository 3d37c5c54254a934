// deep_sample.h — what the parts of the deep solver share: the sample as rows of matrices, and sums over it.
//
// Sums are taken in parts that do not depend on the number of threads, so that every machine finds the same tables.
#pragma once

#include <Eigen/Dense>
#include <algorithm>
#include <vector>

#include "calib/deep.h"
#include "calib/statistics.h"
#include "solve/parallel.h"

namespace tierkv::solve {

using Matrix = Eigen::MatrixXd;
using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXd;

constexpr double kDeepUnits = 128.0;  // of a source, in its standard deviation

// One layer's sample less its mean: [sampled][dim], as calib/deep.h has x.
struct Centred {
  Rows rows;
  Eigen::RowVectorXf mean;
};

Centred centred(const calib::Statistics& s, uint32_t layer);

// The middle one. REQUIRES: there is one.
template <class T>
T median(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

constexpr Eigen::Index kParts = 8;

// body(part, first row, rows), in as many threads as there are processors.
template <class Body>
void for_parts(Eigen::Index rows, Body&& body) {
  for_each_index(static_cast<uint32_t>(kParts), [&](uint32_t i) {
    const auto part = static_cast<Eigen::Index>(i);
    const Eigen::Index from = rows * part / kParts, to = rows * (part + 1) / kParts;
    if (to > from) body(part, from, to - from);
  });
}

// a'b over the rows, a mean.
Matrix products(const Rows& a, const Rows& b);

}  // namespace tierkv::solve
