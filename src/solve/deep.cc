#include "solve/deep.h"

#include <atomic>
#include <cmath>
#include <thread>

#include "base/guarded.h"
#include "base/status_macros.h"
#include "solve/deep_basis.h"
#include "solve/deep_prediction.h"
#include "solve/deep_weight.h"
#include "solve/parallel.h"

namespace tierkv::solve {

using namespace calib;

namespace {

constexpr uint32_t kLeastRows = 1024;

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
  for (Eigen::Index c = 0; c < n; ++c) out.unit.push_back(static_cast<float>(std::sqrt(std::max(variance[c], floor)) / kDeepUnits));
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

// Every layer by itself, in threads.
Status solve_each_alone(const Statistics& s, const std::vector<uint32_t>& coded, DeepTables& tables, std::vector<Roots>& roots,
                        const Progress& progress) {
  std::vector<Status> problems(coded.size());
  std::atomic<size_t> done{0};
  const auto caller = std::this_thread::get_id();  // who alone reports
  for_each_index(static_cast<uint32_t>(coded.size()), [&](uint32_t i) {
    auto solved = solve_alone(s, tables, coded[i], roots[i]);
    if (solved.ok()) tables.coded[i] = std::move(*solved);
    else problems[i] = solved.status();
    ++done;
    if (progress && std::this_thread::get_id() == caller) {
      progress(0.3 * static_cast<double>(done) / static_cast<double>(coded.size()));
    }
  });
  for (const Status& problem : problems) TIERKV_RETURN_IF_ERROR(problem);
  return {};
}

}  // namespace

Result<DeepTables> solve_deep(const Statistics& s, const Progress& progress) try {
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
TIERKV_NO_MEMORY("solve the tables of the deep archive")

}  // namespace tierkv::solve
