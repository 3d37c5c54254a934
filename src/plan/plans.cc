#include "plan/plans.h"

#include <algorithm>

namespace tierkv::plan {

LayerPlan Plans::layer(uint32_t layer, uint32_t length) const {
  const Layer& from = layers_[layer];
  LayerPlan out = from.plan;
  if (from.archive.empty()) return out;
  if (const int choice = choice_of(layer); choice >= 0) {
    out.archive_codec = from.choices[static_cast<size_t>(choice)];
  } else {
    const Step* step = from.archive.data();
    while (length >= step->below && step != &from.archive.back()) ++step;
    out.archive_codec = step->codec;
    out.archive_heads = step->heads;
    out.choices = from.choices;
  }
  out.waiting = from.may_wait && waiting_ && waiting_->load(std::memory_order_relaxed);
  return out;
}

int Plans::choice_of(uint32_t layer) const {
  const size_t choices = layers_[layer].choices.size();
  const int choice = choices ? chosen_[layer].load(std::memory_order_relaxed) - 1 : -1;
  return choice < static_cast<int>(choices) ? choice : -1;
}

const CodecEntry& Plans::coldest(uint32_t layer) const {
  const int choice = choice_of(layer);
  return choice >= 0 ? *layers_[layer].choices[static_cast<size_t>(choice)] : *layers_[layer].archive.back().codec;
}

Plans::Chosen Plans::chosen() const {
  Chosen out;
  for (uint32_t l = 0; l < num_layers(); ++l) {
    out.of += layers_[l].choices.empty() ? 0 : 1;
    out.layers += choice_of(l) >= 0 ? 1 : 0;
  }
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
  if (choice_of(layer) >= 0) return quant::to_string(coldest(layer).pair);
  std::string name = quant::to_string(steps[0].codec->pair);
  for (size_t i = 1; i < steps.size(); ++i) {
    name += ", from " + std::to_string(steps[i - 1].below) + " tokens on " + quant::to_string(steps[i].codec->pair);
  }
  return name;
}

// Bits for a number in a block, scales and padding included.
static double block_bits(const CodecEntry& entry) {
  return 8.0 * static_cast<double>(entry.key->bytes() + entry.value->bytes()) / (2.0 * entry.tokens * entry.key->shape().head_dim);
}

double Plans::archive_bits() const {
  double bits = 0.0, archives = 0.0;
  for (uint32_t l = 0; l < num_layers(); ++l) {
    if (layers_[l].archive.empty() || layers_[l].plan.ring) continue;
    bits += block_bits(coldest(l));
    archives += 1.0;
  }
  return archives > 0.0 ? bits / archives : 0.0;
}

double Plans::archive_share() const {
  double most = 0.0;
  for (const Layer& l : layers_) {
    if (l.archive.empty() || !l.plan.warm_codec) continue;
    most = std::max(most, block_bits(*l.archive.back().codec) / block_bits(*l.plan.warm_codec));
    for (const CodecEntry* choice : l.choices) most = std::max(most, block_bits(*choice) / block_bits(*l.plan.warm_codec));
  }
  return most;
}

bool Plans::can_wait() const {
  return std::any_of(layers_.begin(), layers_.end(), [](const Layer& l) { return l.may_wait; });
}

size_t Plans::largest_block(const std::function<size_t(const CodecEntry&)>& bytes, uint32_t kv_heads) const {
  size_t most = 0;
  const auto add = [&](const CodecEntry* entry) {
    if (entry) most = std::max(most, bytes(*entry));
  };
  for (const Layer& l : layers_) {
    for (const CodecEntry* entry : {l.plan.warm_codec, l.plan.raw_warm, l.plan.raw_archive}) add(entry);
    for (uint32_t h = 0; l.plan.warm_heads && h < kv_heads; ++h) add(l.plan.warm_heads[h]);
    for (const CodecEntry* choice : l.choices) add(choice);
    for (const Step& step : l.archive) {
      add(step.codec);
      for (uint32_t h = 0; step.heads && h < kv_heads; ++h) add(step.heads[h]);
    }
  }
  return most;
}

}  // namespace tierkv::plan
