// reference_cache.h — the plainest cache there is: a list of (position, key row, value row) for each head, and a double-precision
// softmax.
//
// It knows no tiers and no codecs. What it predicts about AdaptiveKVCache: lengths, which positions are live, and, given the rows
// as the cache would use them, what attention must return. The random test of model_based_test.cc and the properties of
// property_testing.h hold the cache against it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace tierkv::testing {

// One key/value row of one KV head at one position.
struct ReferenceRow {
  uint32_t position = 0;
  std::vector<float> key, value;
};
using ReferenceHead = std::vector<ReferenceRow>;

struct ReferenceOptions {
  bool causal = true;
  double scale = 1.0;
  double softcap = 0.0;
  uint32_t window = 0;
  const float* sink_logit = nullptr;  // one
};

// Attention of one query row at `position`. `out` gets head_dim values; `mass`, when given, the weight of each row in order.
inline void reference_attention(const ReferenceHead& rows, std::span<const float> query, uint32_t position,
                                const ReferenceOptions& o, std::vector<double>& out, std::vector<double>* mass = nullptr) {
  const double hidden = -std::numeric_limits<double>::infinity();
  std::vector<double> weight(rows.size(), hidden);
  double top = o.sink_logit ? *o.sink_logit : hidden;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (o.causal && rows[i].position > position) continue;
    if (o.window && static_cast<uint64_t>(rows[i].position) + o.window <= position) continue;
    double score = 0.0;
    for (size_t c = 0; c < query.size(); ++c) score += static_cast<double>(query[c]) * rows[i].key[c];
    score *= o.scale;
    if (o.softcap > 0.0) score = o.softcap * std::tanh(score / o.softcap);
    weight[i] = score;
    top = std::max(top, score);
  }
  double sum = o.sink_logit ? std::exp(*o.sink_logit - top) : 0.0;
  for (double& w : weight) sum += w = w == hidden ? 0.0 : std::exp(w - top);
  out.assign(query.size(), 0.0);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (weight[i] == 0.0) continue;
    weight[i] /= sum;
    for (size_t c = 0; c < query.size(); ++c) out[c] += weight[i] * rows[i].value[c];
  }
  if (mass) *mass = std::move(weight);
}

// Largest |a-b| over the largest |b|, or over `floor` when b is smaller than that.
inline double relative_error(std::span<const float> a, std::span<const double> b, double floor = 1e-6) {
  double error = 0.0, size = floor;
  for (size_t i = 0; i < b.size(); ++i) {
    error = std::max(error, std::fabs(static_cast<double>(a[i]) - b[i]));
    size = std::max(size, std::fabs(b[i]));
  }
  return error / size;
}

// What one layer of one sequence should hold. Keys and values are the originals, by position, [kv head][head_dim].
struct ReferenceLayer {
  uint32_t length = 0;
  std::vector<std::vector<float>> keys, values;  // by position
  std::vector<std::vector<uint32_t>> live;       // by KV head: positions, ascending

  void append(const std::vector<float>& key, const std::vector<float>& value) {
    keys.push_back(key);
    values.push_back(value);
    for (auto& head : live) head.push_back(length);
    ++length;
  }
  void truncate(uint32_t to) {
    if (to >= length) return;
    keys.resize(to);
    values.resize(to);
    for (auto& head : live) {
      while (!head.empty() && head.back() >= to) head.pop_back();
    }
    length = to;
  }
};

struct ReferenceSequence {
  std::vector<ReferenceLayer> layers;
  // False once rows may have left the tail early or come back to it: truncated, evicted from, or under moving thresholds.
  bool plain = true;
  // Once it was packed, or came out of a deep archive: its blocks, and copies made of them later, are not what was appended.
  bool packed_once = false;

  ReferenceSequence(uint32_t num_layers, uint32_t kv_heads) : layers(num_layers) {
    for (ReferenceLayer& layer : layers) layer.live.resize(kv_heads);
  }
  uint32_t longest() const {
    uint32_t n = 0;
    for (const ReferenceLayer& layer : layers) n = std::max(n, layer.length);
    return n;
  }
  uint32_t shortest() const {
    uint32_t n = layers[0].length;
    for (const ReferenceLayer& layer : layers) n = std::min(n, layer.length);
    return n;
  }
};

}  // namespace tierkv::testing
