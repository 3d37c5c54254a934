#include "plan/plans.h"

#include <algorithm>

namespace tierkv::plan {

LayerPlan Plans::layer(uint32_t layer, uint32_t length) const {
  const Layer& from = layers_[layer];
  LayerPlan out = from.plan;
  if (from.archive.empty()) return out;
  const Step* step = from.archive.data();
  while (length >= step->below && step != &from.archive.back()) ++step;
  out.archive_codec = step->codec;
  out.archive_heads = step->heads;
  return out;
}

std::vector<LayerPlan> Plans::all(std::span<const uint32_t> lengths) const {
  std::vector<LayerPlan> out;
  out.reserve(layers_.size());
  for (uint32_t l = 0; l < num_layers(); ++l) out.push_back(layer(l, lengths[l]));
  return out;
}

std::vector<LayerThresholds> Plans::thresholds() const {
  std::vector<LayerThresholds> out;
  out.reserve(layers_.size());
  for (const Layer& l : layers_) {
    const int bits = l.archive.empty() ? 0 : quant::whole_bits(l.archive.front().codec->pair.key);
    out.push_back({l.plan.hot, l.plan.warm, static_cast<uint32_t>(bits)});
  }
  return out;
}

std::string Plans::archive_codec(uint32_t layer) const {
  const std::vector<Step>& steps = layers_[layer].archive;
  if (steps.empty()) return std::string();
  std::string name = quant::to_string(steps[0].codec->pair);
  for (size_t i = 1; i < steps.size(); ++i) {
    name += ", from " + std::to_string(steps[i - 1].below) + " tokens on " + quant::to_string(steps[i].codec->pair);
  }
  return name;
}

size_t Plans::largest_block(const std::function<size_t(const CodecEntry&)>& bytes, uint32_t kv_heads) const {
  size_t most = 0;
  const auto add = [&](const CodecEntry* entry) {
    if (entry) most = std::max(most, bytes(*entry));
  };
  for (const Layer& l : layers_) {
    for (const CodecEntry* entry : {l.plan.warm_codec, l.plan.raw_warm, l.plan.raw_archive}) add(entry);
    for (uint32_t h = 0; l.plan.warm_heads && h < kv_heads; ++h) add(l.plan.warm_heads[h]);
    for (const Step& step : l.archive) {
      add(step.codec);
      for (uint32_t h = 0; step.heads && h < kv_heads; ++h) add(step.heads[h]);
    }
  }
  return most;
}

}  // namespace tierkv::plan
