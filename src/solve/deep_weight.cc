#include "solve/deep_weight.h"

#include <cmath>

namespace tierkv::solve {

using namespace calib;

namespace {

constexpr double kWeightRidge = 0.1;
constexpr double kLeastQueries = 512.0;  // after a token, for what they gave it to be learnt from
constexpr double kMostRate = 1e4;        // of the ordinary token's
constexpr double kMostSurprise = 8.0;    // how far one token may pull the fit
constexpr double kWeightPace = 0.7;
constexpr int kWeightRounds = 12;

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

}  // namespace

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
    const std::vector<double> f = deep_weight_features(tables, out, whole.data(), x.rows.row(i).data());
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

}  // namespace tierkv::solve
