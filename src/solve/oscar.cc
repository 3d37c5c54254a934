#include "solve/oscar.h"

#include <Eigen/Dense>
#include <cmath>

#include "base/f16.h"
#include "base/status_macros.h"

namespace tierkv::solve {

using namespace calib;

namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

uint32_t run_of(uint32_t d) { return d & (~d + 1u); }  // the largest power of two that divides it

// Place k of the order in which bits are reversed, over as many bits as d needs; places past d are left out.
std::vector<uint32_t> bit_reversed(uint32_t d) {
  uint32_t bits = 0;
  while ((1u << bits) < d) ++bits;
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < 1u << bits; ++i) {
    uint32_t reversed = 0;
    for (uint32_t b = 0; b < bits; ++b) reversed |= (i >> b & 1u) << (bits - 1 - b);
    if (reversed < d) order.push_back(reversed);
  }
  return order;
}

// Eigenvectors by falling eigenvalue in bit-reversed order, then the Hadamard transform: rotated = row · result.
MatrixXd rotation(const MatrixXd& covariance) {
  const auto d = static_cast<uint32_t>(covariance.rows());
  const Eigen::SelfAdjointEigenSolver<MatrixXd> solver(0.5 * (covariance + covariance.transpose()));
  const std::vector<uint32_t> order = bit_reversed(d);
  MatrixXd directions(d, d);
  for (uint32_t k = 0; k < d; ++k) directions.col(k) = solver.eigenvectors().col(static_cast<Index>(d - 1 - order[k]));
  const uint32_t run = run_of(d);
  MatrixXd hadamard = MatrixXd::Zero(d, d);
  const double unit = 1.0 / std::sqrt(static_cast<double>(run));
  for (uint32_t r = 0; r < d; ++r) {
    for (uint32_t c = r / run * run; c < (r / run + 1) * run; ++c)
      hadamard(r, c) = __builtin_popcount(r & c & (run - 1)) % 2 ? -unit : unit;
  }
  return directions * hadamard;
}

VectorXd sampled(const std::vector<uint16_t>& rows, size_t at, uint32_t d) {
  VectorXd x(d);
  for (uint32_t c = 0; c < d; ++c) x[c] = f16_to_f32(rows[at * d + c]);
  return x;
}

void store(const MatrixXd& matrix, std::span<uint16_t> out) {
  const Index d = matrix.rows();
  for (Index r = 0; r < d; ++r) {
    for (Index c = 0; c < d; ++c) out[static_cast<size_t>(r * d + c)] = f32_to_f16(static_cast<float>(matrix(r, c)));
  }
}

}  // namespace

Result<OscarTables> solve_oscar(const Statistics& statistics, const Progress& progress) {
  const ModelId& model = statistics.model;
  const uint32_t d = model.head_dim, heads = model.kv_heads;
  const size_t square = static_cast<size_t>(d) * d;
  const auto wrong = [] { return error(StatusCode::invalid_argument, "the statistics do not have the size of their model"); };
  if (d == 0 || statistics.pairs.size() != static_cast<size_t>(model.layers) * heads || statistics.layers.size() != model.layers)
    return wrong();
  OscarTables tables{model.layers, heads, d, {}};
  tables.rotations.resize(2 * statistics.pairs.size() * square);
  for (uint32_t layer = 0; layer < model.layers; ++layer) {
    const LayerSample& sample = statistics.layers[layer];
    const size_t rows = static_cast<size_t>(statistics.sampled()) * heads;
    if (sample.keys.size() != rows * d || sample.values.size() != rows * d) return wrong();
    for (uint32_t head = 0; head < heads; ++head) {
      const PairSums& sums = statistics.pair_sums(layer, head);
      MatrixXd gram = MatrixXd::Identity(d, d), covariance = MatrixXd::Identity(d, d);
      if (sums.query_count != 0) {
        if (sums.queries.size() != square) return wrong();
        gram = Eigen::Map<const MatrixXd>(sums.queries.data(), d, d) / static_cast<double>(sums.query_count);
        covariance.setZero();
        for (size_t t = 0; t < statistics.sampled(); ++t) {
          const VectorXd key = sampled(sample.keys, t * heads + head, d), value = sampled(sample.values, t * heads + head, d);
          covariance += key.dot(gram * key) * value * value.transpose();
        }
      }
      if (!gram.allFinite() || !covariance.allFinite()) {
        return error(StatusCode::invalid_argument, "layer ", layer, ", KV head ", head, ": sums for OSCAR are not finite");
      }
      const size_t at = (static_cast<size_t>(layer) * heads + head) * 2 * square;
      store(rotation(gram), std::span(tables.rotations).subspan(at, square));
      store(rotation(covariance), std::span(tables.rotations).subspan(at + square, square));
    }
    if (progress) progress(static_cast<double>(layer + 1) / model.layers);
  }
  return tables;
}

}  // namespace tierkv::solve
