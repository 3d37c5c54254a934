#include "solve/squat.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "base/status_macros.h"

namespace tierkv::solve {

using namespace calib;

namespace {

Status check_sums(const PairSums& sums, uint32_t d, uint32_t layer, uint32_t head) {
  if (sums.query_count == 0) return Status();  // a layer whose window never reaches the archive
  if (sums.queries.size() != static_cast<size_t>(d) * d) {
    return error(StatusCode::invalid_argument, "layer ", layer, ", KV head ", head, ": the sums over queries have ",
                 sums.queries.size(), " numbers where the model has ", static_cast<size_t>(d) * d);
  }
  for (const double x : sums.queries) {
    if (!std::isfinite(x))
      return error(StatusCode::invalid_argument, "layer ", layer, ", KV head ", head, ": a sum over queries is ", x);
  }
  return Status();
}

Status solve_head(const PairSums& sums, double lambda, uint32_t d, uint32_t layer, uint32_t head, std::span<float> out) {
  TIERKV_RETURN_IF_ERROR(check_sums(sums, d, layer, head));
  if (sums.query_count == 0) return Status();                               // no directions: kivi
  const Eigen::Map<const Eigen::MatrixXd> gram(sums.queries.data(), d, d);  // symmetric: rows or columns, all the same
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(0.5 * (gram + gram.transpose()));
  if (solver.info() != Eigen::Success) {
    return error(StatusCode::invalid_argument, "layer ", layer, ", KV head ", head, ": the sums over queries have no eigenvectors");
  }
  for (size_t k = 0; k < out.size() / d; ++k) {
    const Eigen::Index at = static_cast<Eigen::Index>(d - 1 - k);  // ascending in Eigen
    const double length = std::sqrt(lambda * std::max(0.0, solver.eigenvalues()[at]) / static_cast<double>(sums.query_count));
    if (!(length <= kSquatLongest)) {
      return error(StatusCode::invalid_argument, "layer ", layer, ", KV head ", head, ": queries of length ", length,
                   " are past fp16");
    }
    for (uint32_t c = 0; c < d; ++c)
      out[k * d + c] = static_cast<float>(length * solver.eigenvectors()(static_cast<Eigen::Index>(c), at));
  }
  return Status();
}

}  // namespace

Result<SquatTables> solve_squat(const Statistics& statistics, const Progress& progress, const SquatOptions& options) {
  const ModelId& model = statistics.model;
  const uint32_t d = model.head_dim;
  if (d == 0 || statistics.pairs.size() != static_cast<size_t>(model.layers) * model.kv_heads || statistics.pairs.empty()) {
    return error(StatusCode::invalid_argument, "the statistics do not have the size of their model");
  }
  if (options.rank == 0 || !(options.lambda >= 0.0 && options.lambda <= 1e6)) {
    return error(StatusCode::invalid_argument, "SQuat with rank ", options.rank, " and lambda ", options.lambda,
                 " makes no sense; allowed: rank 1 or more, lambda 0..1e6");
  }
  if (std::all_of(statistics.pairs.begin(), statistics.pairs.end(), [](const PairSums& sums) { return sums.query_count == 0; })) {
    return error(StatusCode::invalid_argument, "SQuat needs queries, and the statistics have none");
  }
  SquatTables tables{model.layers, model.kv_heads, d, std::min(options.rank, d), {}};
  tables.directions.resize(statistics.pairs.size() * tables.rank * d);
  for (uint32_t layer = 0; layer < model.layers; ++layer) {
    for (uint32_t head = 0; head < model.kv_heads; ++head) {
      const size_t at = (static_cast<size_t>(layer) * model.kv_heads + head) * tables.rank * d;
      TIERKV_RETURN_IF_ERROR(solve_head(statistics.pair_sums(layer, head), options.lambda, d, layer, head,
                                        std::span(tables.directions).subspan(at, static_cast<size_t>(tables.rank) * d)));
    }
    if (progress) progress(static_cast<double>(layer + 1) / model.layers);
  }
  return tables;
}

}  // namespace tierkv::solve
