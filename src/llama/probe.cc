#include "llama/probe.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "llama/probe_floor.h"
#include "llama/prober.h"

namespace tierkv::llama {
namespace {

constexpr uint32_t kStretch = 256;      // scored tokens of a window, unless there are too few windows
constexpr uint32_t kMostPrefix = 2048;  // tokens before them

}  // namespace

Result<ProbeEffects> probe(const ModelShape& shape, const std::vector<TokenList>& windows, const CalibrationPtr& tables,
                           const CalibrateOptions& options) {
  Trials trials = plan_trials(*tables);
  // Windows are equally long, and have room for an archive and as much again: calibration_windows().
  const auto length = static_cast<uint32_t>(windows.front().size());
  const auto count = static_cast<uint32_t>(std::clamp<uint64_t>(options.probe_tokens / kStretch, 1, windows.size()));
  const uint32_t scored =
      std::clamp((options.probe_tokens + count - 1) / count, 1u, length - (options.sinks + options.distance + options.block));
  const uint32_t prefix = std::min(kMostPrefix, length - scored);
  Prober prober(shape, tables, options);
  TIERKV_RETURN_IF_ERROR(prober.open());
  const uint64_t total = (trials.loud.size() + trials.whispers.size()) * count;
  uint64_t done = 0;
  for (uint32_t w = 0; w < count; ++w) {
    const TokenList& whole = windows[static_cast<size_t>(w) * windows.size() / count];
    TIERKV_RETURN_IF_ERROR(prober.begin(TokenList(whole.begin(), whole.begin() + prefix + scored), prefix));
    for (std::vector<Trial>* kind : {&trials.loud, &trials.whispers}) {
      for (Trial& trial : *kind) {
        TIERKV_RETURN_IF_ERROR(prober.run(trial));
        if (options.progress) options.progress({"probing", ++done, total});
        if (options.cancelled && options.cancelled()) return error(StatusCode::failed_precondition, "calibration was stopped");
      }
    }
  }

  const Floor floor(trials.whispers);
  ProbeEffects effects;
  effects.keys.resize(shape.layers);
  effects.values.resize(shape.layers);
  for (const Trial& trial : trials.loud) {
    const Mean mean = mean_of(trial.blocks);
    (trial.side == kKeys ? effects.keys : effects.values)[trial.layer] = {mean.value, mean.error, floor.at(trial.layer),
                                                                          floor.error(), trial.distortion};
  }
  return effects;
}

LayerWeights weights_of(const ProbeEffects& effects) {
  LayerWeights weights{std::vector<double>(effects.keys.size(), 1.0), std::vector<double>(effects.values.size(), 1.0)};
  struct Heard {
    double* weight;
    double effect, error, distortion;
  };
  std::vector<Heard> heard;
  const auto collect = [&](const std::vector<ProbeEffect>& from, std::vector<double>& to) {
    for (size_t i = 0; i < from.size(); ++i) {
      const ProbeEffect& e = from[i];
      if (e.distortion > 0.0) heard.push_back({&to[i], e.divergence - e.floor, std::hypot(e.error, e.floor_error), e.distortion});
    }
  };
  collect(effects.keys, weights.keys);
  collect(effects.values, weights.values);
  double effect = 0.0, noise = 0.0, distortion = 0.0;
  for (const Heard& h : heard) effect += h.effect, noise += h.error * h.error, distortion += h.distortion;
  if (!(effect > 3.0 * std::sqrt(noise))) return weights;

  // The ratio of effect to prediction, 1 on average, its noise, and how far it really varies.
  const double usual = effect / distortion;
  const auto ratio = [&](const Heard& h) { return h.effect / (usual * h.distortion); };
  const auto doubt = [&](const Heard& h) { return h.error / (usual * h.distortion); };
  double spread = 0.0, sum = 0.0;
  for (const Heard& h : heard) {
    const double squared = doubt(h) * doubt(h), share = 1.0 / (1.0 + squared);
    spread += share * ((ratio(h) - 1.0) * (ratio(h) - 1.0) - squared);
    sum += share;
  }
  spread = std::max(spread / sum, 0.01);
  double logs = 0.0;
  for (const Heard& h : heard) {
    const double believed = 1.0 + (ratio(h) - 1.0) * spread / (spread + doubt(h) * doubt(h));
    *h.weight = std::clamp(believed, 1.0 / kMostWeight, kMostWeight);
    logs += std::log(*h.weight);
  }
  const double middle = std::exp(logs / static_cast<double>(heard.size()));
  for (const Heard& h : heard) *h.weight /= middle;
  return weights;
}

}  // namespace tierkv::llama
