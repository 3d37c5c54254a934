#include "solve/deep_basis.h"

#include <cmath>

#include "base/f16.h"

namespace tierkv::solve {

using namespace calib;

namespace {

using RowMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr double kMetricRidge = 1e-3;  // of the mean eigenvalue
constexpr double kLeastSpread = 1e-12;

// What later queries gave the ordinary token of a head, as a share of what all got: a few tokens take nearly everything, and what
// is learnt of pairs is mostly about those.
double ordinary_share(const Statistics& s, uint32_t layer, uint32_t head, bool keys) {
  const std::vector<float>& weight = keys ? s.layers[layer].influence : s.layers[layer].weight;
  std::vector<float> seen;
  double total = 0.0;
  for (uint32_t i = 0; i < s.sampled(); ++i) {
    const float w = weight[static_cast<size_t>(i) * s.model.kv_heads + head];
    if (!(w > 0.0f)) continue;
    seen.push_back(w);
    total += static_cast<double>(w);
  }
  if (seen.size() < 16) return 1.0;
  return std::max(static_cast<double>(median(seen)) * static_cast<double>(seen.size()) / total, 1e-6);
}

// blocks · m, the blocks along the diagonal.
Matrix block_times(const std::vector<Matrix>& blocks, const Matrix& m) {
  Matrix out(m.rows(), m.cols());
  Eigen::Index at = 0;
  for (const Matrix& block : blocks) {
    out.middleRows(at, block.rows()).noalias() = block * m.middleRows(at, block.rows());
    at += block.rows();
  }
  return out;
}

Rows expanded(const DeepBasis& basis, Eigen::Index n) {
  Rows rows(n, n);
  for (Eigen::Index j = 0; j < n; ++j) {
    for (Eigen::Index c = 0; c < n; ++c)
      rows(j, c) = std::ldexp(f16_to_f32(basis.rows[static_cast<size_t>(j * n + c)]), basis.exponent[static_cast<size_t>(j)]);
  }
  return rows;
}

}  // namespace

Roots find_roots(const Statistics& s, uint32_t layer) {
  const Eigen::Index d = s.model.head_dim;
  const uint32_t heads = s.model.kv_heads;
  Roots out;
  for (uint32_t b = 0; b < 2 * heads; ++b) {
    const PairSums& pairs = s.pair_sums(layer, b % heads);
    const bool keys = b < heads;
    Matrix m = Eigen::Map<const RowMatrix>((keys ? pairs.key_plain : pairs.value).data(), d, d);
    m = 0.5 * (m + m.transpose().eval());
    m *= ordinary_share(s, layer, b % heads, keys);
    const double ridge = kMetricRidge * std::max(m.trace(), 1e-300) / static_cast<double>(d);
    m += ridge * Matrix::Identity(d, d);
    const Eigen::SelfAdjointEigenSolver<Matrix> eigen(m);
    const Vector roots = eigen.eigenvalues().cwiseMax(0.5 * ridge).cwiseSqrt();
    out.metric.push_back(eigen.eigenvectors() * roots.cwiseAbs2().asDiagonal() * eigen.eigenvectors().transpose());
    out.root.push_back(eigen.eigenvectors() * roots.asDiagonal() * eigen.eigenvectors().transpose());
    out.inverse.push_back(eigen.eigenvectors() * roots.cwiseInverse().asDiagonal() * eigen.eigenvectors().transpose());
  }
  return out;
}

DeepBasis find_basis(const Matrix& covariance, const Roots& roots) {
  const Matrix half = block_times(roots.root, covariance);
  Matrix whitened = block_times(roots.root, half.transpose());
  whitened = 0.5 * (whitened + whitened.transpose().eval());
  const Eigen::SelfAdjointEigenSolver<Matrix> axes(whitened);
  const Eigen::Index n = covariance.rows();
  const Matrix back = block_times(roots.inverse, axes.eigenvectors().rowwise().reverse());
  DeepBasis basis;
  basis.rows.resize(static_cast<size_t>(n * n));
  for (Eigen::Index j = 0; j < n; ++j) {
    const double variance = std::max(axes.eigenvalues()[n - 1 - j], 0.0);
    basis.spread.push_back(
        static_cast<int16_t>(std::clamp(std::round(128.0 * std::log2(std::max(variance, kLeastSpread))), -30000.0, 30000.0)));
    const double largest = std::max(back.col(j).cwiseAbs().maxCoeff(), 1e-30);
    const int exponent = static_cast<int>(std::ceil(std::log2(largest)));
    basis.exponent.push_back(static_cast<int16_t>(exponent));
    for (Eigen::Index c = 0; c < n; ++c) {
      basis.rows[static_cast<size_t>(j * n + c)] = f32_to_f16(static_cast<float>(std::ldexp(back(c, j), -exponent)));
    }
  }
  return basis;
}

void normalise(DeepTables& tables, std::vector<Roots>& roots) {
  double log_sum = 0.0;
  size_t count = 0;
  for (const DeepLayer& layer : tables.coded) {
    for (const int16_t spread : layer.basis[kDeepPlain].spread) log_sum += spread, ++count;
  }
  const int shift = static_cast<int>(std::lround(log_sum / static_cast<double>(std::max<size_t>(count, 1)) / 256.0));  // octaves
  for (DeepLayer& layer : tables.coded) {
    for (DeepBasis& basis : layer.basis) {
      for (int16_t& e : basis.exponent) e = static_cast<int16_t>(e + shift);
      for (int16_t& e : basis.spread) e = static_cast<int16_t>(std::clamp(e - 256 * shift, -32000, 32000));
    }
    for (float& m : layer.metric) m = std::ldexp(m, -2 * shift);
    // A feature of the weights is the log of a length in the metric: what it loses the constant gives back.
    const size_t first = 2 + tables.dim();
    for (uint32_t h = 0; h < tables.kv_heads; ++h)
      layer.weight[0] += layer.weight[first + 3 * h] * static_cast<float>(2.0 * shift * std::log(2.0));
  }
  for (Roots& r : roots) {
    for (Matrix& m : r.root) m *= std::ldexp(1.0, -shift);
    for (Matrix& m : r.inverse) m *= std::ldexp(1.0, shift);
  }
}

void quantize_rows(const DeepLayer& layer, int which, float step, uint32_t head_dim, Rows& rows) {
  const Eigen::Index n = rows.cols(), d = head_dim;
  const Rows back = expanded(layer.basis[which], n);
  Rows forth(n, n);  // [dim][component], as deep/transform.cc has it
  for (Eigen::Index part = 0; part < n / d; ++part) {
    const Eigen::Map<const Rows> metric(layer.metric.data() + part * d * d, d, d);
    forth.middleRows(part * d, d).noalias() = metric * back.middleCols(part * d, d).transpose();
  }
  for_parts(rows.rows(), [&](Eigen::Index, Eigen::Index from, Eigen::Index count) {
    Rows components = rows.middleRows(from, count) * forth;
    components = components.unaryExpr([step](float c) {
      const float level = std::floor(std::fabs(c) / step + 0.4f);
      return c < 0.0f ? -level * step : level * step;
    });
    rows.middleRows(from, count).noalias() = components * back;
  });
}

}  // namespace tierkv::solve
