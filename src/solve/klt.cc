#include "solve/klt.h"

#include <Eigen/Dense>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "base/f16.h"
#include "base/guarded.h"
#include "base/status_macros.h"
#include "solve/parallel.h"

namespace tierkv::solve {

using namespace calib;

namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr double kMetricRidge = 1e-3;  // of the mean eigenvalue: directions no query looked at still cost something
constexpr double kSpreadFloor = 1e-4;  // of the largest standard deviation: a direction without spread is not divided by nothing
constexpr uint32_t kFitRows = 4096;    // rows the steps are fitted on
constexpr uint32_t kLeastRows = 1024;
constexpr float kGaussStep[kKltWidths] = {0.9957f, 0.3352f, 0.0308f};  // best for a normal component of unit spread
constexpr int kLeastStep = -4, kMostStep = 12, kMostStep2 = 6;         // quarters of an octave around it

uint16_t half(double x) { return f32_to_f16(static_cast<float>(std::clamp(x, -60000.0, 60000.0))); }

// The sampled keys of one head in the frame of their blocks.
Rows block_frame_rows(const Statistics& s, uint32_t layer, uint32_t head) {
  const uint32_t d = s.model.head_dim, n = s.sampled();
  const Turner turner(s.ropes[layer], d);
  Rows rows(n, d);
  for (uint32_t i = 0; i < n; ++i) {
    const uint16_t* key = s.layers[layer].keys.data() + (static_cast<size_t>(i) * s.model.kv_heads + head) * d;
    for (uint32_t c = 0; c < d; ++c) rows(i, c) = f16_to_f32(key[c]);
    turner.turn(rows.row(i).data(), 1, -static_cast<int64_t>(block_start(s.positions[i], s.sinks, s.block)), rows.row(i).data());
  }
  return rows;
}

struct Basis {
  Matrix analysis, synthesis;  // as KltHead has them, before rounding
  Eigen::VectorXd variance;
};

Basis find_basis(const Matrix& covariance, const Matrix& sums) {
  const Eigen::Index d = covariance.rows();
  const double ridge = kMetricRidge * sums.trace() / static_cast<double>(d);
  const Eigen::SelfAdjointEigenSolver<Matrix> metric(sums + ridge * Matrix::Identity(d, d));
  const Eigen::VectorXd roots = metric.eigenvalues().cwiseMax(0.5 * ridge).cwiseSqrt();
  const Matrix s = metric.eigenvectors() * roots.asDiagonal() * metric.eigenvectors().transpose();
  const Matrix inverse = metric.eigenvectors() * roots.cwiseInverse().asDiagonal() * metric.eigenvectors().transpose();
  const Eigen::SelfAdjointEigenSolver<Matrix> axes(s * covariance * s);
  Basis basis;
  basis.variance = axes.eigenvalues().reverse().cwiseMax(0.0);
  const Matrix u = axes.eigenvectors().rowwise().reverse();
  const double floor = kSpreadFloor * std::sqrt(basis.variance[0]);
  const Eigen::VectorXd spread = basis.variance.cwiseSqrt().cwiseMax(floor);
  basis.analysis = spread.cwiseInverse().asDiagonal() * (u.transpose() * s);
  basis.synthesis = spread.asDiagonal() * (u.transpose() * inverse);
  return basis;
}

struct Fit {
  float step = 1.0f;
  double squared = 0.0;  // mean squared error at it
};

// x: one component over its spread.
Fit fit_step(const std::vector<float>& x, int width) {
  const uint32_t bits = kKltBits[width];
  const float low = -static_cast<float>(1u << (bits - 1)), high = -low - 1.0f;
  Fit best;
  double least = std::numeric_limits<double>::infinity();
  for (int i = kLeastStep; i <= (bits == 2 ? kMostStep2 : kMostStep); ++i) {
    const float step = kGaussStep[width] * std::exp2(0.25f * static_cast<float>(i));
    const float inverse = 1.0f / step;
    double fourth = 0.0, squared = 0.0;
    for (size_t from = 0; from < x.size(); from += 1024) {
      float sum4 = 0.0f, sum2 = 0.0f;
      for (size_t k = from; k < std::min(x.size(), from + 1024); ++k) {
        const float code = std::min(std::max(std::floor(x[k] * inverse), low), high);
        const float error = x[k] - (code + 0.5f) * step, e2 = error * error;
        sum2 += e2;
        sum4 += e2 * e2;
      }
      fourth += sum4;
      squared += sum2;
    }
    if (fourth < least) {
      least = fourth;
      best = {step, squared / static_cast<double>(x.size())};
    }
  }
  return best;
}

// Where a normal distribution of unit spread has the share `p` below it. Winitzki's inverse of the error function: 0.002 is near
// enough for steps a quarter of an octave apart.
float normal_quantile(double p) {
  const double y = 2.0 * p - 1.0, l = std::log(1.0 - y * y), a = 0.147, b = 2.0 / (3.14159265358979 * a) + 0.5 * l;
  return static_cast<float>(std::copysign(std::sqrt(2.0 * (std::sqrt(b * b - l / a) - b)), y));
}

// Squared error of a unit normal value on the best uniform grid of 2, 3 and 4 bits, and a little for its coded step: textbook
// figures, not measured.
constexpr float kValueError[3] = {0.125f, 0.037f, 0.011f};

// Rope spreads a value's error evenly over its channels, so the metric's trace and the size of values that are looked at
// decide.
std::vector<float> value_distortions(double unit) {
  std::vector<float> result;
  for (const float e : kValueError) result.push_back(static_cast<float>(unit * e));
  return result;
}

double value_unit(const Statistics& s, uint32_t layer, uint32_t head) {
  const uint32_t d = s.model.head_dim;
  double size = 0.0, weights = 0.0, trace = 0.0;
  for (uint32_t i = 0; i < s.sampled(); ++i) {
    const size_t at = static_cast<size_t>(i) * s.model.kv_heads + head;
    double squared = 0.0;
    for (uint32_t c = 0; c < d; ++c) squared += std::pow(static_cast<double>(f16_to_f32(s.layers[layer].values[at * d + c])), 2);
    size += s.layers[layer].weight[at] * squared;
    weights += s.layers[layer].weight[at];
  }
  const std::vector<double>& metric = s.pair_sums(layer, head).value;
  for (uint32_t c = 0; c < d && !metric.empty(); ++c) trace += metric[static_cast<size_t>(c) * d + c];
  return weights > 0.0 ? size / weights / d * trace : 0.0;
}

Status check_head(const Statistics& s, uint32_t layer, uint32_t head) {
  const PairSums& pairs = s.pair_sums(layer, head);
  for (const double v : pairs.key_block) {
    if (!std::isfinite(v)) {
      return error(StatusCode::invalid_argument, "the statistics of layer ", layer, ", KV head ", head,
                   " are not finite: the model gave NaN or infinity");
    }
  }
  return {};
}

bool has_pairs(const Statistics& s, uint32_t layer, uint32_t head) {
  const uint32_t d = s.model.head_dim;
  const PairSums& pairs = s.pair_sums(layer, head);
  if (pairs.key_block.size() != static_cast<size_t>(d) * d) return false;
  double trace = 0.0;
  for (uint32_t c = 0; c < d; ++c) trace += pairs.key_block[static_cast<size_t>(c) * d + c];
  return trace > 0.0;
}

// Mean, basis, steps and distortions. `rows` are keys less the mean; `normal` rows of a normal distribution are fitted on beside
// them.
void fit_head(const Rows& rows, const Eigen::RowVectorXf& mean, const Basis& basis, uint32_t normal, KltHead& out) {
  const auto d = static_cast<uint32_t>(rows.cols());
  out.mean.assign(mean.data(), mean.data() + d);
  out.analysis.resize(static_cast<size_t>(d) * d);
  out.synthesis.resize(static_cast<size_t>(d) * d);
  Rows rounded(d, d);
  for (uint32_t j = 0; j < d; ++j) {
    for (uint32_t c = 0; c < d; ++c) {
      out.analysis[static_cast<size_t>(j) * d + c] = half(basis.analysis(j, c));
      out.synthesis[static_cast<size_t>(j) * d + c] = half(basis.synthesis(j, c));
      rounded(j, c) = f16_to_f32(out.analysis[static_cast<size_t>(j) * d + c]);
    }
  }
  const Eigen::Index stride = std::max<Eigen::Index>(1, rows.rows() / kFitRows);
  const Eigen::Index fit_rows = rows.rows() / stride;
  const Rows chosen = Eigen::Map<const Rows, 0, Eigen::OuterStride<>>(rows.data(), fit_rows, d, Eigen::OuterStride<>(stride * d));
  const Rows components = rounded * chosen.transpose();
  for (int w = 0; w < kKltWidths; ++w) {
    out.step[w].resize(d);
    out.distortion[w].resize(d);
  }
  out.variance.resize(d);
  const size_t all_rows = static_cast<size_t>(fit_rows) + normal;
  std::vector<float> x(all_rows);
  for (uint32_t i = 0; i < normal; ++i) x[static_cast<size_t>(fit_rows) + i] = normal_quantile((i + 0.5) / normal);
  for (uint32_t j = 0; j < d; ++j) {
    const double unit = std::max(basis.variance[j], std::pow(kSpreadFloor, 2) * basis.variance[0]);
    std::copy_n(components.row(j).data(), fit_rows, x.data());
    double power = 0.0;
    for (const float v : x) power += static_cast<double>(v) * v;
    out.variance[j] = static_cast<float>(unit * power / static_cast<double>(all_rows));
    for (int w = 0; w < kKltWidths; ++w) {
      const Fit fit = fit_step(x, w);
      out.step[w][j] = fit.step;
      out.distortion[w][j] = static_cast<float>(unit * fit.squared);
    }
  }
}

Result<KltHead> solve_head(const Statistics& s, uint32_t layer, uint32_t head) {
  const uint32_t d = s.model.head_dim;
  TIERKV_RETURN_IF_ERROR(check_head(s, layer, head));
  KltHead out;
  if (!has_pairs(s, layer, head)) return out;  // a layer that never reaches the archive
  Rows rows = block_frame_rows(s, layer, head);
  const Eigen::RowVectorXf mean = rows.colwise().mean();
  rows.rowwise() -= mean;
  const Matrix covariance = (rows.transpose() * rows).cast<double>() / static_cast<double>(rows.rows());
  if (!covariance.allFinite() || covariance.trace() <= 0.0) {
    return error(StatusCode::invalid_argument, "the keys of layer ", layer, ", KV head ", head,
                 covariance.allFinite() ? " do not vary over the text: it cannot calibrate them" : " are not finite");
  }
  const Matrix sums = Eigen::Map<const Matrix>(s.pair_sums(layer, head).key_block.data(), d, d);
  fit_head(rows, mean, find_basis(covariance, 0.5 * (sums + sums.transpose())), 0, out);
  out.value_distortion = value_distortions(value_unit(s, layer, head));
  return out;
}

}  // namespace

Result<KltTables> solve_klt(const Statistics& s, const Progress& progress) try {
  if (s.sampled() < kLeastRows) {
    return error(StatusCode::invalid_argument, "a calibration needs at least ", kLeastRows,
                 " sampled tokens, these statistics have ", s.sampled());
  }
  KltTables tables;
  tables.layers = s.model.layers;
  tables.kv_heads = s.model.kv_heads;
  tables.head_dim = s.model.head_dim;
  const uint32_t heads = tables.layers * tables.kv_heads;
  tables.heads.resize(heads);
  std::vector<Status> problems(heads);
  std::atomic<uint32_t> done{0};
  const auto caller = std::this_thread::get_id();  // who alone reports
  for_each_index(heads, [&](uint32_t i) {
    auto solved = solve_head(s, i / s.model.kv_heads, i % s.model.kv_heads);
    if (solved.ok()) tables.heads[i] = std::move(*solved);
    else problems[i] = solved.status();
    ++done;
    if (progress && std::this_thread::get_id() == caller) progress(static_cast<double>(done) / heads);
  });
  for (const Status& problem : problems) TIERKV_RETURN_IF_ERROR(problem);
  if (std::all_of(tables.heads.begin(), tables.heads.end(), [](const KltHead& h) { return h.mean.empty(); })) {
    return error(StatusCode::invalid_argument, "no layer saw a key ", s.distance,
                 " tokens before its query: the windows of text are too short");
  }
  return tables;
}
TIERKV_NO_MEMORY("solve the tables of keys")

Result<KltHead> solve_klt_head(const KltMoments& m, const std::string& place) try {
  const auto d = static_cast<Eigen::Index>(m.dim);
  Matrix covariance = Eigen::Map<const Matrix>(m.covariance.data(), d, d), metric = Eigen::Map<const Matrix>(m.metric.data(), d, d);
  Rows rows = Eigen::Map<const Rows>(m.rows.data(), static_cast<Eigen::Index>(m.rows.size()) / d, d);
  if (!covariance.allFinite() || !metric.allFinite() || !rows.allFinite() || !std::isfinite(m.value_unit)) {
    return error(StatusCode::invalid_argument, "the statistics of ", place, " are not finite: the model gave NaN or infinity");
  }
  if (covariance.trace() <= 0.0 || metric.trace() <= 0.0) {
    return error(StatusCode::invalid_argument, "the keys of ", place, " do not vary over the text: it cannot calibrate them");
  }
  const Eigen::VectorXd spread = covariance.diagonal();
  covariance *= 1.0 - m.covariance_shrink;
  covariance.diagonal() = spread;
  const double even = m.metric_shrink * metric.trace() / static_cast<double>(d);
  metric = (1.0 - m.metric_shrink) * metric + even * Matrix::Identity(d, d);
  const Eigen::RowVectorXf mean = Eigen::Map<const Eigen::RowVectorXd>(m.mean.data(), d).cast<float>();
  rows.rowwise() -= mean;
  KltHead out;
  fit_head(rows, mean, find_basis(covariance, 0.5 * (metric + metric.transpose())), m.normal_rows, out);
  out.value_distortion = value_distortions(m.value_unit);
  return out;
}
TIERKV_NO_MEMORY("solve the tables of keys")

}  // namespace tierkv::solve
