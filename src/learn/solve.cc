// solve.cc — Learner::solve(): one head after the other from sums to tables, then the check of all of them.
#include <algorithm>
#include <cmath>

#include "base/guarded.h"
#include "base/status_macros.h"
#include "learn/check.h"
#include "learn/layer.h"
#include "learn/learner.h"
#include "learn/sums.h"
#include "solve/klt.h"
#include "tierkv/c.h"

namespace tierkv::learn {
namespace {

constexpr uint32_t kLeastVariety = 64;

std::vector<double> symmetric(const std::vector<float>& upper, uint32_t dim, double factor) {
  std::vector<double> full(static_cast<size_t>(dim) * dim);
  const float* from = upper.data();
  for (uint32_t r = 0; r < dim; ++r) {
    for (uint32_t c = r; c < dim; ++c)
      full[r * static_cast<size_t>(dim) + c] = full[c * static_cast<size_t>(dim) + r] = factor * *from++;
  }
  return full;
}

struct Moments {
  std::vector<double> mean, covariance;
};

Moments moments_of(const HeadSums& sums, uint32_t dim) {
  const double n = static_cast<double>(sums.keys);
  Moments m;
  for (const double x : sums.key) m.mean.push_back(x / n);
  m.covariance.resize(static_cast<size_t>(dim) * dim);
  const double* from = sums.square.data();
  for (uint32_t r = 0; r < dim; ++r) {
    for (uint32_t c = r; c < dim; ++c) {
      const double both = *from++ / n - m.mean[r] * m.mean[c];
      m.covariance[r * static_cast<size_t>(dim) + c] = m.covariance[c * static_cast<size_t>(dim) + r] = both;
    }
  }
  for (uint32_t c = 0; c < dim; ++c) {  // rounding may leave a channel without spread below 0
    double& own = m.covariance[static_cast<size_t>(c) * dim + c];
    own = std::max(own, 0.0);
  }
  return m;
}

// What an error in a channel of values does, of one kind of queries.
double value_metric(const HeadSums& sums, const LayerLearner& layer, uint32_t head, Kind kind, double residual) {
  double trace = 0.0;
  const auto group = static_cast<uint32_t>(sums.value[kind].size());
  for (uint32_t g = 0; g < group; ++g) trace += sums.value[kind][g] * layer.gram_trace(head * group + g);
  return trace / static_cast<double>(sums.key.size()) / residual;
}

Result<calib::KltHead> solve_head(const LayerSums& layer_sums, const LayerLearner& layer, uint32_t index, uint32_t head,
                                  uint32_t dim, double residual, const Shrinking& shrinking) {
  const HeadSums& sums = layer_sums.heads[head];
  const std::string place = "layer " + std::to_string(index) + ", KV head " + std::to_string(head);
  if (sums.keys == 0) return error(StatusCode::failed_precondition, "no key of ", place, " was seen");
  const Moments moments = moments_of(sums, dim);
  const std::vector<double> metric = symmetric(sums.metric[kFit], dim, 1.0 / residual);
  const HeadSample sample = layer.sample(head);
  solve::KltMoments input;
  input.dim = dim;
  input.mean = moments.mean;
  input.covariance = moments.covariance;
  input.metric = metric;
  input.rows = sample.keys[kFit];
  const double keys = static_cast<double>(sums.keys),
               queries = static_cast<double>(layer_sums.queries[kFit] * sums.value[kFit].size());
  input.covariance_shrink = shrinking.covariance * dim / (shrinking.covariance * dim + keys);
  input.metric_shrink = shrinking.metric * dim / (shrinking.metric * dim + queries);
  input.normal_rows = shrinking.normal_rows;
  if (sums.weight > 0.0) {
    input.value_unit = sums.size / sums.weight * value_metric(sums, layer, head, kFit, residual);
  }
  return solve::solve_klt_head(input, place);
}

}  // namespace

Result<std::shared_ptr<calib::Calibration>> Learner::solve(const std::string& text_name, const std::function<bool()>& cancelled,
                                                           LearnCheck* check) const try {
  const auto stopped = [&] { return cancelled && cancelled(); };
  const Status stop(StatusCode::failed_precondition, "learning was stopped");
  TIERKV_ASSIGN_OR_RETURN(Sums sums, all_sums());
  std::vector<std::string> earlier;
  {
    std::lock_guard lock(mutex_);
    earlier = earlier_;
  }
  for (const std::string& path : earlier) {
    const auto there = learn::load_sums(path, frame());
    if (!there.ok()) continue;  // it was used or removed meanwhile: what this run saw is what there is
    sums.tokens += there->tokens;
    sums.variety = std::max(sums.variety, there->variety);
    for (uint32_t i = 0; i < id_.layers; ++i) sums.layers[i].add(there->layers[i]);
  }
  if (sums.variety < kLeastVariety) {
    return error(StatusCode::invalid_argument, "the text repeats ", sums.variety,
                 sums.variety == 1 ? " token" : " different tokens", " over ", sums.tokens, ": a model is learnt from at least ",
                 kLeastVariety, " different ones");
  }
  const LayerSums& first = sums.layers[first_learnt_];
  if (first.queries[kFit] == 0 || first.queries[kHeldOut] == 0) {
    return error(StatusCode::failed_precondition, "no query saw a key ", settings_.distance,
                 " tokens before it: the texts were too short to learn from");
  }

  calib::KltTables tables;
  tables.layers = id_.layers;
  tables.kv_heads = id_.kv_heads;
  tables.head_dim = id_.head_dim;
  tables.heads.resize(static_cast<size_t>(id_.layers) * id_.kv_heads);
  for (uint32_t i = 0; i < id_.layers; ++i) {
    for (uint32_t h = 0; layers_[i] && h < id_.kv_heads; ++h) {
      if (stopped()) return stop;
      TIERKV_ASSIGN_OR_RETURN(tables.heads[static_cast<size_t>(i) * id_.kv_heads + h],
                              solve_head(sums.layers[i], *layers_[i], i, h, id_.head_dim, residuals_[i], settings_.shrinking));
    }
  }
  auto result = std::make_shared<calib::Calibration>();
  result->model = id_;
  result->origin = {text_name, sums.tokens, std::string("tierkv ") + tierkv_version()};
  result->block = settings_.block;
  result->sinks = settings_.sinks;
  result->distance = settings_.distance;
  result->ropes = ropes_;
  result->klt = std::make_shared<const calib::KltTables>(std::move(tables));
  TIERKV_RETURN_IF_ERROR(result->finish());

  LearnCheck found;
  for (uint32_t i = 0; i < id_.layers; ++i) {
    for (uint32_t h = 0; layers_[i] && h < id_.kv_heads; ++h) {
      if (stopped()) return stop;
      HeadSample sample = layers_[i]->sample(h);
      if (sample.keys[kHeldOut].empty())
        return error(StatusCode::failed_precondition, "too few tokens were seen to check tables on");
      const HeadSums& of_head = sums.layers[i].heads[h];
      HeldOutHead rows;
      rows.keys = std::move(sample.keys[kHeldOut]);
      rows.values = std::move(sample.values);
      rows.metric = symmetric(of_head.metric[kHeldOut], id_.head_dim, 1.0 / residuals_[i]);
      rows.value_metric = value_metric(of_head, *layers_[i], h, kHeldOut, residuals_[i]);
      TIERKV_ASSIGN_OR_RETURN(const HeadErrors errors, held_out_errors(result, i, h, rows));
      found.calibrated += errors.calibrated;
      found.uncalibrated += errors.uncalibrated;
    }
  }
  if (check != nullptr) *check = found;
  if (!(found.calibrated <= kMostOfUncalibrated * found.uncalibrated)) {
    return error(StatusCode::failed_precondition, "tables learnt from ", sums.tokens,
                 " tokens would not help: on tokens held back their error is ", found.calibrated, ", without tables ",
                 found.uncalibrated);
  }
  return result;
}
TIERKV_NO_MEMORY("learn a model")

}  // namespace tierkv::learn
