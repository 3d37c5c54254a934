#include "solve/deep_prediction.h"

#include <cmath>

namespace tierkv::solve {

using namespace calib;

namespace {

constexpr double kPredictRidge = 1e-3;  // of a source's own variance
constexpr double kTrainBits = 0.8;      // a value: where predictions are fitted

// Rounds the prediction [sources·dim inputs][dim] and gives back what it then is.
Matrix round_prediction(const Matrix& b, const Vector& units, DeepLayer& out) {
  const Eigen::Index n = b.cols();
  Matrix rounded(b.rows(), n);
  out.scale.resize(static_cast<size_t>(n));
  out.predict.resize(static_cast<size_t>(b.size()));
  for (Eigen::Index i = 0; i < n; ++i) {
    const Vector w = b.col(i).cwiseProduct(units);
    double most = 1e-30;
    for (uint32_t source = 0; source < out.sources; ++source) most = std::max(most, w.segment(source * n, n).cwiseAbs().sum());
    const double budget = static_cast<double>(kDeepRowSum) - 0.5 * static_cast<double>(n) - 1.0;
    const float scale = static_cast<float>(std::max(most / budget, w.cwiseAbs().maxCoeff() / 32000.0));
    out.scale[static_cast<size_t>(i)] = scale;
    for (Eigen::Index j = 0; j < b.rows(); ++j) {
      const double code = std::round(w[j] / static_cast<double>(scale));
      out.predict[static_cast<size_t>((j / n * n + i) * n + j % n)] = static_cast<int16_t>(code);
      rounded(j, i) = code * static_cast<double>(scale) / units[j];
    }
  }
  return rounded;
}

}  // namespace

double training_step(const DeepTables& tables) {
  double low = -40.0, high = 40.0;  // log2
  for (int i = 0; i < 40; ++i) {
    const double middle = 0.5 * (low + high);
    double bits = 0.0, count = 0.0;
    for (const DeepLayer& layer : tables.coded) {
      for (const int16_t spread : layer.basis[kDeepPlain].spread)
        bits += deep_bits(std::exp2(spread / 256.0 - middle)), count += 1.0;
    }
    (bits / count > kTrainBits ? low : high) = middle;
  }
  return std::exp2(0.5 * (low + high));
}

void solve_prediction(const DeepTables& tables, const Roots& roots, const Rows& sources, const std::vector<const DeepLayer*>& from,
                      float step, DeepLayer& out, Rows& rows) {
  const Eigen::Index n = rows.cols();
  out.sources = static_cast<uint32_t>(from.size());
  const Matrix gram = products(sources, sources);
  const Matrix cross = products(sources, rows);
  Matrix ridged = gram;
  Vector units(gram.rows());
  for (Eigen::Index c = 0; c < gram.rows(); ++c) {
    units[c] = static_cast<double>(from[static_cast<size_t>(c / n)]->unit[static_cast<size_t>(c % n)]);
    ridged(c, c) += kPredictRidge * std::max(gram(c, c), std::pow(kDeepUnits * units[c], 2));
  }
  const Matrix b = round_prediction(ridged.llt().solve(cross), units, out);
  const Eigen::MatrixXf matrix = b.cast<float>();
  Rows predicted(rows.rows(), n);
  for_parts(rows.rows(), [&](Eigen::Index, Eigen::Index at, Eigen::Index count) {
    predicted.middleRows(at, count).noalias() = sources.middleRows(at, count) * matrix;
  });
  rows -= predicted;
  out.basis[kDeepPredicted] = find_basis(products(rows, rows), roots);
  quantize_rows(out, kDeepPredicted, step, tables.head_dim, rows);
  rows += predicted;
}

}  // namespace tierkv::solve
