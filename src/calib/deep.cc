#include "calib/deep.h"

#include <Eigen/Dense>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <thread>

#include "base/f16.h"
#include "base/status_macros.h"

namespace tierkv::calib {
namespace {

using Matrix = Eigen::MatrixXd;
using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXd;

constexpr double kMetricRidge = 1e-3;   // of the mean eigenvalue
constexpr double kPredictRidge = 1e-3;  // of a source's own variance
constexpr double kTrainBits = 0.8;      // a value: where predictions are fitted
constexpr double kWeightRidge = 0.1;
constexpr double kLeastQueries = 512.0;  // after a token, for what they gave it to be learnt from
constexpr double kMostRate = 1e4;        // of the ordinary token's
constexpr double kMostSurprise = 8.0;    // how far one token may pull the fit
constexpr double kWeightPace = 0.7;
constexpr int kWeightRounds = 12;
constexpr double kUnits = 128.0;  // of a source, in its standard deviation
constexpr uint32_t kLeastRows = 1024;
constexpr double kLeastSpread = 1e-12;

// Keys turned back to before RoPE, and values: [sampled][dim].
Rows vectors(const Statistics& s, uint32_t layer) {
  const uint32_t d = s.model.head_dim, width = s.model.kv_heads * d, n = s.sampled();
  const Turner turner(s.ropes[layer], d);
  Rows rows(n, 2 * width);
  for (uint32_t i = 0; i < n; ++i) {
    const uint16_t* keys = s.layers[layer].keys.data() + static_cast<size_t>(i) * width;
    const uint16_t* values = s.layers[layer].values.data() + static_cast<size_t>(i) * width;
    float* row = rows.row(i).data();
    for (uint32_t c = 0; c < width; ++c) {
      row[c] = f16_to_f32(keys[c]);
      row[width + c] = f16_to_f32(values[c]);
    }
    turner.turn(row, s.model.kv_heads, -static_cast<int64_t>(s.positions[i]), row);
  }
  return rows;
}

// The middle one. REQUIRES: there is one.
template <class T>
T median(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

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

struct Centred {
  Rows rows;
  Eigen::RowVectorXf mean;
};

Centred centred(const Statistics& s, uint32_t layer) {
  Centred out{vectors(s, layer), {}};
  out.mean = (out.rows.cast<double>().colwise().mean()).cast<float>();
  out.rows.rowwise() -= out.mean;
  return out;
}

// The roots of the metric, block by block.
struct Roots {
  std::vector<Matrix> metric, root, inverse;  // [2·kv_heads]
};

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

std::vector<double> weight_features(const DeepTables& tables, const DeepLayer& layer, const float* x, const float* centred) {
  const uint32_t d = tables.head_dim, heads = tables.kv_heads, dim = tables.dim();
  std::vector<double> f(1 + dim + 3 * static_cast<size_t>(heads));
  f[0] = 1.0;
  for (uint32_t c = 0; c < dim; ++c) f[1 + c] = centred[c];
  for (uint32_t h = 0; h < heads; ++h) {
    const float *k = x + static_cast<size_t>(h) * d, *v = x + static_cast<size_t>(heads + h) * d;
    const float* m = layer.metric.data() + static_cast<size_t>(h) * d * d;
    double kk = 0.0, vv = 0.0, kmk = 0.0;
    for (uint32_t a = 0; a < d; ++a) {
      kk += static_cast<double>(k[a]) * k[a];
      vv += static_cast<double>(v[a]) * v[a];
      double row = 0.0;
      for (uint32_t b = 0; b < d; ++b) row += static_cast<double>(m[static_cast<size_t>(a) * d + b]) * k[b];
      kmk += row * k[a];
    }
    f[1 + dim + 3 * h] = std::log(std::max(kk, 1e-30));
    f[2 + dim + 3 * h] = std::log(std::max(kmk, 1e-30));
    f[3 + dim + 3 * h] = std::log(std::max(vv, 1e-30));
  }
  return f;
}

// What later queries gave a token against what they gave the ordinary one, mean over heads and per query that could look back;
// below 0: too few could.
std::vector<double> read_rates(const Statistics& s, uint32_t layer) {
  const uint32_t heads = s.model.kv_heads, n = s.sampled();
  const std::vector<float>& weight = s.layers[layer].influence;
  const double end = *std::max_element(s.positions.begin(), s.positions.end()) + 1.0;
  std::vector<double> later(n), rates(n, 0.0);
  for (uint32_t i = 0; i < n; ++i) later[i] = end - s.distance - s.positions[i];
  for (uint32_t h = 0; h < heads; ++h) {
    std::vector<double> seen;
    for (uint32_t i = 0; i < n; ++i) {
      if (later[i] >= kLeastQueries) seen.push_back(static_cast<double>(weight[static_cast<size_t>(i) * heads + h]) / later[i]);
    }
    if (seen.empty()) continue;
    const double ordinary = median(std::move(seen));
    if (!(ordinary > 0.0)) continue;
    for (uint32_t i = 0; i < n; ++i)
      rates[i] += static_cast<double>(weight[static_cast<size_t>(i) * heads + h]) / std::max(later[i], 1.0) / ordinary / heads;
  }
  for (uint32_t i = 0; i < n; ++i) {
    if (later[i] < kLeastQueries) rates[i] = -1.0;
  }
  return rates;
}

// The log of the expected rate as a linear function of the features: a gamma regression with a logarithmic link, whose steps are
// least squares with the same matrix every time. (The expected log of the rate is something else: few tokens are ever looked up,
// and which ones chance decides.)
void fit_weight(const Statistics& s, const DeepTables& tables, const Centred& x, DeepLayer& out) {
  out.weight.assign(1 + tables.dim() + 3 * static_cast<size_t>(tables.kv_heads), 0.0f);
  const std::vector<double> rates = read_rates(s, out.layer);
  std::vector<uint32_t> used;
  for (uint32_t i = 0; i < s.sampled(); ++i) {
    if (rates[i] >= 0.0) used.push_back(i);
  }
  const auto features = static_cast<Eigen::Index>(out.weight.size()), count = static_cast<Eigen::Index>(used.size());
  if (count < 2 * features) return;  // too little to learn from: every token the same
  Rows a(count, features);
  Vector y(count);
  for (Eigen::Index r = 0; r < count; ++r) {
    const uint32_t i = used[static_cast<size_t>(r)];
    const Eigen::RowVectorXf whole = x.rows.row(i) + x.mean;
    const std::vector<double> f = weight_features(tables, out, whole.data(), x.rows.row(i).data());
    for (size_t c = 0; c < f.size(); ++c) a(r, static_cast<Eigen::Index>(c)) = static_cast<float>(f[c]);
    y[r] = std::min(rates[i], kMostRate);
  }
  if (!(y.mean() > 0.0)) return;
  Eigen::RowVectorXf middle = a.colwise().mean();
  middle[0] = 0.0f;
  a.rowwise() -= middle;
  Matrix gram = (a.transpose() * a).cast<double>();
  for (Eigen::Index c = 1; c < features; ++c) gram(c, c) *= 1.0 + kWeightRidge;
  gram.diagonal().array() += 1e-9;
  const Eigen::LDLT<Matrix> solver(gram);
  Vector w = Vector::Zero(features);
  w[0] = std::log(y.mean());
  for (int round = 0; round < kWeightRounds; ++round) {
    const Vector log_mean = (a * w.cast<float>()).cast<double>();
    Vector off(count);
    for (Eigen::Index r = 0; r < count; ++r)
      off[r] = std::min(y[r] * std::exp(-std::clamp(log_mean[r], -20.0, 20.0)) - 1.0, kMostSurprise);
    w += kWeightPace * solver.solve((a.transpose() * off.cast<float>()).cast<double>());
  }
  if (!w.allFinite()) return;
  double constant = w[0];
  for (Eigen::Index c = 1; c < features; ++c) {
    out.weight[static_cast<size_t>(c)] = static_cast<float>(w[c]);
    constant -= w[c] * static_cast<double>(middle[c]);
  }
  // The ordinary token of the sample has weight one.
  const Eigen::VectorXf fitted = a * w.cast<float>();
  out.weight[0] =
      static_cast<float>(constant - static_cast<double>(median(std::vector<float>(fitted.data(), fitted.data() + count))));
}

// --- sums over the sample, in parts that do not depend on the number of threads

constexpr Eigen::Index kParts = 8;

template <class Body>
void for_parts(Eigen::Index rows, Body&& body) {
  std::atomic<Eigen::Index> next{0};
  const auto work = [&] {
    for (Eigen::Index part = next++; part < kParts; part = next++) {
      const Eigen::Index from = rows * part / kParts, to = rows * (part + 1) / kParts;
      if (to > from) body(part, from, to - from);
    }
  };
  std::vector<std::thread> others;
  for (Eigen::Index i = 1; i < std::min<Eigen::Index>(kParts, std::max(1u, std::thread::hardware_concurrency())); ++i)
    others.emplace_back(work);
  work();
  for (std::thread& t : others) t.join();
}

// a'b over the rows.
Matrix products(const Rows& a, const Rows& b) {
  std::vector<Eigen::MatrixXf> parts(kParts, Eigen::MatrixXf::Zero(a.cols(), b.cols()));
  for_parts(a.rows(), [&](Eigen::Index part, Eigen::Index from, Eigen::Index count) {
    parts[static_cast<size_t>(part)].noalias() = a.middleRows(from, count).transpose() * b.middleRows(from, count);
  });
  Matrix sum = parts[0].cast<double>();
  for (size_t i = 1; i < parts.size(); ++i) sum += parts[i].cast<double>();
  return sum / static_cast<double>(a.rows());
}

// What does not depend on other layers.
Result<DeepLayer> solve_alone(const Statistics& s, const DeepTables& tables, uint32_t layer, Roots& roots) {
  const auto n = static_cast<Eigen::Index>(tables.dim());
  DeepLayer out;
  out.layer = layer;
  const Centred x = centred(s, layer);
  Eigen::MatrixXf sums = Eigen::MatrixXf::Zero(n, n);
  sums.selfadjointView<Eigen::Lower>().rankUpdate(x.rows.transpose(), 1.0f / static_cast<float>(x.rows.rows()));
  const Matrix covariance = Eigen::MatrixXf(sums.selfadjointView<Eigen::Lower>()).cast<double>();
  if (!covariance.allFinite() || covariance.trace() <= 0.0) {
    return error(StatusCode::invalid_argument, "the keys and values of layer ", layer,
                 covariance.allFinite() ? " do not vary over the text: it cannot calibrate them" : " are not finite");
  }
  out.mean.assign(x.mean.data(), x.mean.data() + n);
  const Vector variance = covariance.diagonal();
  const double floor = 1e-8 * variance.mean() + 1e-20;
  for (Eigen::Index c = 0; c < n; ++c) out.unit.push_back(static_cast<float>(std::sqrt(std::max(variance[c], floor)) / kUnits));
  roots = find_roots(s, layer);
  for (const Matrix& m : roots.metric) {
    for (Eigen::Index a = 0; a < m.rows(); ++a) {
      for (Eigen::Index b = 0; b < m.cols(); ++b) out.metric.push_back(static_cast<float>(m(a, b)));
    }
  }
  out.basis[kDeepPlain] = find_basis(covariance, roots);
  fit_weight(s, tables, x, out);
  return out;
}

// The step at which the plain bases take kTrainBits a value: about where archives work.
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

Rows expanded(const DeepBasis& basis, Eigen::Index n) {
  Rows rows(n, n);
  for (Eigen::Index j = 0; j < n; ++j) {
    for (Eigen::Index c = 0; c < n; ++c)
      rows(j, c) = std::ldexp(f16_to_f32(basis.rows[static_cast<size_t>(j * n + c)]), basis.exponent[static_cast<size_t>(j)]);
  }
  return rows;
}

// What a decoder would have of the rows at `step`: rows <- the nearest point of the grid, in the basis.
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

// Predicts a layer from what the decoder has of those before it. `sources`: [sampled][sources·dim] of them; on return `rows`, the
// true rows less their mean, are what the decoder would have of this layer.
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
    ridged(c, c) += kPredictRidge * std::max(gram(c, c), std::pow(kUnits * units[c], 2));
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

// Layers that some query reads from afar; the others slide and never reach an archive.
std::vector<uint32_t> layers_to_code(const Statistics& s) {
  std::vector<uint32_t> coded;
  const size_t square = static_cast<size_t>(s.model.head_dim) * s.model.head_dim;
  for (uint32_t l = 0; l < s.model.layers; ++l) {
    bool whole = true;
    for (uint32_t h = 0; h < s.model.kv_heads; ++h) {
      const PairSums& pairs = s.pair_sums(l, h);
      double keys = 0.0, values = 0.0;
      if (pairs.key_plain.size() == square && pairs.value.size() == square) {
        for (uint32_t c = 0; c < s.model.head_dim; ++c) {
          keys += pairs.key_plain[static_cast<size_t>(c) * (s.model.head_dim + 1)];
          values += pairs.value[static_cast<size_t>(c) * (s.model.head_dim + 1)];
        }
      }
      whole &= keys > 0.0 && values > 0.0;
    }
    if (whole) coded.push_back(l);
  }
  return coded;
}

Status check_finite(const Statistics& s) {
  const auto finite = [](const std::vector<double>& values) {
    return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
  };
  for (const PairSums& pairs : s.pairs) {
    if (!finite(pairs.key_plain) || !finite(pairs.value))
      return error(StatusCode::invalid_argument, "the statistics are not finite: the model gave NaN or infinity");
  }
  return {};
}

// One unit for all layers: brings the mean variance of a component to 1, so that steps are near 1 whatever the model.
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

// Every layer by itself, in threads.
Status solve_each_alone(const Statistics& s, const std::vector<uint32_t>& coded, DeepTables& tables, std::vector<Roots>& roots,
                        const Progress& progress) {
  std::vector<Status> problems(coded.size());
  std::atomic<size_t> next{0}, done{0};
  const auto work = [&](bool reports) {
    for (size_t i = next++; i < coded.size(); i = next++) {
      auto solved = solve_alone(s, tables, coded[i], roots[i]);
      if (solved.ok()) tables.coded[i] = std::move(*solved);
      else problems[i] = solved.status();
      ++done;
      if (reports && progress) progress(0.3 * static_cast<double>(done) / static_cast<double>(coded.size()));
    }
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < std::min<size_t>(coded.size(), std::max(1u, std::thread::hardware_concurrency())); ++i)
    others.emplace_back(work, false);
  work(true);
  for (std::thread& t : others) t.join();
  for (const Status& problem : problems) TIERKV_RETURN_IF_ERROR(problem);
  return {};
}

}  // namespace

double deep_bits(double r) {
  const double some = std::exp(-std::sqrt(2.0) * 0.6 / r), more = std::exp(-std::sqrt(2.0) / r);
  const auto entropy = [](double p) {
    return p <= 1e-12 || p >= 1.0 - 1e-12 ? 0.0 : -p * std::log2(p) - (1.0 - p) * std::log2(1.0 - p);
  };
  return entropy(some) + some * (1.0 + (more < 1.0 - 1e-9 ? entropy(more) / (1.0 - more) : 0.0));
}

float DeepTables::log_weight(const DeepLayer& layer, const float* x, const float* centred) const {
  const std::vector<double> f = weight_features(*this, layer, x, centred);
  double sum = 0.0;
  for (size_t c = 0; c < f.size(); ++c) sum += f[c] * static_cast<double>(layer.weight[c]);
  return static_cast<float>(sum);
}

Result<DeepTables> solve_deep(const Statistics& s, const Progress& progress) {
  if (s.sampled() < kLeastRows) {
    return error(StatusCode::invalid_argument, "a calibration needs at least ", kLeastRows,
                 " sampled tokens, these statistics have ", s.sampled());
  }
  TIERKV_RETURN_IF_ERROR(check_finite(s));
  DeepTables tables;
  tables.layers = s.model.layers;
  tables.kv_heads = s.model.kv_heads;
  tables.head_dim = s.model.head_dim;
  if (tables.dim() > kDeepMostDim) {
    return error(StatusCode::unsupported, "the deep archive serves layers of up to ", kDeepMostDim,
                 " key and value channels, this model has ", tables.dim());
  }
  const std::vector<uint32_t> coded = layers_to_code(s);
  if (coded.empty()) {
    return error(StatusCode::invalid_argument, "no layer saw a key ", s.distance,
                 " tokens before its query: the windows of text are too short");
  }
  tables.coded.resize(coded.size());
  std::vector<Roots> roots(coded.size());
  TIERKV_RETURN_IF_ERROR(solve_each_alone(s, coded, tables, roots, progress));
  normalise(tables, roots);
  // One after the other, as a decoder does: a layer is predicted from what is left of those before it at an ordinary step, not from
  // what they were.
  const float step = static_cast<float>(training_step(tables));
  const auto n = static_cast<Eigen::Index>(tables.dim());
  Rows sources(static_cast<Eigen::Index>(s.sampled()), 2 * n);
  for (size_t i = 0; i < coded.size(); ++i) {
    Rows rows = centred(s, coded[i]).rows;
    if (i == 0) {
      quantize_rows(tables.coded[i], kDeepPlain, step, tables.head_dim, rows);
    } else {
      std::vector<const DeepLayer*> from = {&tables.coded[i - 1]};
      if (i > 1) from.push_back(&tables.coded[i - 2]);
      const Rows used = sources.leftCols(n * static_cast<Eigen::Index>(from.size()));
      solve_prediction(tables, roots[i], used, from, step, tables.coded[i], rows);
    }
    sources.rightCols(n) = sources.leftCols(n).eval();
    sources.leftCols(n) = rows;
    if (progress) progress(0.3 + 0.7 * static_cast<double>(i + 1) / static_cast<double>(coded.size()));
  }
  return tables;
}

}  // namespace tierkv::calib
