#include "llama/probe_trials.h"

#include <algorithm>
#include <cmath>

namespace tierkv::llama {
namespace {

constexpr double kProbeBits = 1.0;  // of kProbeCodec
constexpr double kUsualBits = 1.5;  // an archive as it is used
constexpr double kLoudness = 0.25;  // of the distortion that all layers together have there
// Of an error. On SmolLM2 the divergence is proportional to the distortion up to a gain of 2 in keys; at 3 the softmax of some
// layers breaks down.
constexpr double kMostGain[2] = {2.0, 4.0};
constexpr double kWhisper = 0.03;  // of an error, for the floor: a thousandth of the distortion
constexpr uint32_t kFloorLayers = 10;

double key_distortion(const calib::KltHead& head, const calib::KltWords& words) {
  double sum = 0.0;
  size_t j = 0;
  for (int w = calib::kKltWidths - 1; w >= 0; --w) {
    for (uint32_t k = 0; k < words.components(static_cast<uint32_t>(w)); ++k, ++j) sum += head.distortion[w][j];
  }
  for (; j < head.variance.size(); ++j) sum += head.variance[j];
  return sum;
}

// What the tables predict of a layer with the widths that all layers have at `bits`.
double layer_distortion(const calib::Calibration& c, double bits, uint32_t layer, Side side) {
  double sum = 0.0;
  for (uint32_t h = 0; h < c.model.kv_heads; ++h) {
    const calib::KltHead& head = c.klt->head(layer, h);
    if (head.mean.empty()) continue;
    const auto choice = c.klt_choice(bits, /*joint=*/true, layer, h);
    if (!choice.ok()) continue;  // never of tables in memory
    sum += side == kKeys ? key_distortion(head, choice->keys) : static_cast<double>(head.value_distortion[choice->value_bits - 2u]);
  }
  return sum;
}

}  // namespace

bool has_basis(const calib::Calibration& c, uint32_t layer) {
  for (uint32_t h = 0; h < c.model.kv_heads; ++h) {
    if (c.klt->head(layer, h).mean.empty()) return false;
  }
  return true;
}

Trials plan_trials(const calib::Calibration& c) {
  double usual = 0.0;
  std::vector<uint32_t> layers;
  for (uint32_t l = 0; l < c.model.layers; ++l) {
    if (!has_basis(c, l)) continue;
    layers.push_back(l);
    usual += layer_distortion(c, kUsualBits, l, kKeys) + layer_distortion(c, kUsualBits, l, kValues);
  }
  const auto add = [&](std::vector<Trial>& trials, uint32_t layer, Side side, double share) {
    const double own = layer_distortion(c, kProbeBits, layer, side);
    if (!(own > 0.0) || !std::isfinite(own)) return;
    const double gain = share * std::min(kMostGain[side], std::sqrt(kLoudness * usual / own));
    trials.push_back({layer, side, gain, gain * gain * own, {}});
  };
  Trials trials;
  for (const uint32_t layer : layers) {
    add(trials.loud, layer, kKeys, 1.0);
    add(trials.loud, layer, kValues, 1.0);
  }
  const size_t floors = std::min<size_t>(kFloorLayers, layers.size());
  for (size_t i = 0; i < floors; ++i)
    add(trials.whispers, layers[floors == 1 ? 0 : i * (layers.size() - 1) / (floors - 1)], kKeys, kWhisper);
  return trials;
}

}  // namespace tierkv::llama
