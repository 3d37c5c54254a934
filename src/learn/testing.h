// testing.h — for tests: a text of a model that does not exist, with its attention in double, and the exact sums over all its
// pairs.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "base/f16.h"
#include "calib/synthetic_statistics.h"
#include "learn/learner.h"

namespace tierkv::learn {

constexpr uint32_t kDim = 32, kHeads = 4, kKvHeads = 2, kGroup = kHeads / kKvHeads;
constexpr float kScale = 0.18f;

inline const Executor kSerial = [](uint32_t count, const std::function<void(uint32_t)>& task) {
  for (uint32_t i = 0; i < count; ++i) task(i);
};

inline LearnSettings small_settings() {
  LearnSettings settings;
  settings.block = 32;
  settings.distance = 64;
  settings.tokens = 1024;
  settings.query_stride = 4;
  return settings;
}

// One sequence of one layer. `sharpness`: how large queries are; large ones find few keys, and errors of keys are what counts.
class Text {
 public:
  Text(calib::SyntheticModel& model, uint32_t layer, uint32_t tokens, float sharpness = 1.5f) : n(tokens), rope(model.rope()) {
    for (uint32_t t = 0; t < n; ++t) {
      for (uint32_t h = 0; h < kKvHeads; ++h) {
        for (const float x : model.key(layer, h, t)) keys.push_back(f32_to_f16(x));
        for (const float x : model.noise(kDim)) values.push_back(f32_to_f16(x));
      }
      for (uint32_t h = 0; h < kHeads; ++h) {
        std::vector<float> q = model.noise(kDim);
        for (uint32_t c = 0; c < kDim; ++c) q[c] *= sharpness * std::pow(0.9f, static_cast<float>((c * 5 + h) % kDim));
        queries.insert(queries.end(), q.begin(), q.end());
      }
    }
    out.assign(queries.size(), 0.0f);
    lse.assign(static_cast<size_t>(n) * kHeads, 0.0f);
    for (uint32_t t = 0; t < n; t += 4) {
      for (uint32_t h = 0; h < kHeads; ++h) attend(t, h);
    }
  }

  double key(uint32_t s, uint32_t head, uint32_t c) const { return f16_to_f32(keys[(s * kKvHeads + head) * kDim + c]); }
  double value(uint32_t s, uint32_t head, uint32_t c) const { return f16_to_f32(values[(s * kKvHeads + head) * kDim + c]); }
  const float* query(uint32_t t, uint32_t h) const { return queries.data() + (static_cast<size_t>(t) * kHeads + h) * kDim; }
  double probability(uint32_t t, uint32_t s, uint32_t h) const {
    double score = 0.0;
    for (uint32_t c = 0; c < kDim; ++c) score += key(s, h / kGroup, c) * query(t, h)[c];
    return std::exp(kScale * score - lse[static_cast<size_t>(t) * kHeads + h]);
  }

  // In pieces of `step` tokens, as a host would.
  void feed(Learner& learner, uint64_t seq, uint32_t layer, uint32_t step = 128, const Executor& run = kSerial) const {
    for (uint32_t at = 0; at < n; at += step) feed(learner, seq, layer, at, std::min(step, n - at), run);
  }
  void feed(Learner& learner, uint64_t seq, uint32_t layer, uint32_t at, uint32_t count, const Executor& run) const {
    const size_t row = static_cast<size_t>(at) * kKvHeads * kDim, query_row = static_cast<size_t>(at) * kHeads * kDim;
    learner.add_rows(seq, layer, at, RowsView::dense(keys.data() + row, DType::f16, count, kKvHeads, kDim),
                     RowsView::dense(values.data() + row, DType::f16, count, kKvHeads, kDim));
    learner.add_queries(seq, layer, at, RowsView::f32(queries.data() + query_row, count, kHeads, kDim), out.data() + query_row,
                        lse.data() + static_cast<size_t>(at) * kHeads, kScale, 0.0f, run);
  }

  // The metric of one KV head over every pair of a looked-at query and a key, in double; `gram` of all query heads, or empty.
  std::vector<double> metric(uint32_t head, const LearnSettings& settings, const std::vector<float>& gram) const {
    const calib::Turner turner(rope, kDim);
    std::vector<double> sums(kDim * kDim, 0.0), moved(kDim);
    std::vector<float> q(kDim);
    for (uint32_t t = 0; t < n; t += settings.query_stride) {
      for (uint32_t g = 0; g < kGroup; ++g) {
        const uint32_t h = head * kGroup + g;
        for (uint32_t s = settings.sinks; s + settings.distance <= t; ++s) {
          const double p = probability(t, s, h);
          for (uint32_t c = 0; c < kDim; ++c) moved[c] = value(s, head, c) - out[(static_cast<size_t>(t) * kHeads + h) * kDim + c];
          double length = 0.0;
          for (uint32_t r = 0; r < kDim; ++r) {
            for (uint32_t c = 0; c < kDim; ++c) {
              length += moved[r] * moved[c] * (gram.empty() ? (r == c ? 1.0 : 0.0) : gram[(h * kDim + r) * kDim + c]);
            }
          }
          turner.turn(query(t, h), 1, -static_cast<int64_t>(calib::block_start(s, settings.sinks, settings.block)), q.data());
          const double w = p * p * length * kScale * kScale;
          for (uint32_t r = 0; r < kDim; ++r) {
            for (uint32_t c = 0; c < kDim; ++c) sums[r * kDim + c] += w * q[r] * q[c];
          }
        }
      }
    }
    return sums;
  }

  uint32_t n;
  calib::Rope rope;
  std::vector<uint16_t> keys, values;  // [tokens][kv heads][dim]
  std::vector<float> queries, out, lse;

 private:
  void attend(uint32_t t, uint32_t h) {
    double sum = 0.0;
    for (uint32_t s = 0; s <= t; ++s) sum += probability(t, s, h);  // lse is 0 so far
    lse[static_cast<size_t>(t) * kHeads + h] = static_cast<float>(std::log(sum));
    std::vector<double> o(kDim, 0.0);
    for (uint32_t s = 0; s <= t; ++s) {
      const double p = probability(t, s, h);
      for (uint32_t c = 0; c < kDim; ++c) o[c] += p * value(s, h / kGroup, c);
    }
    for (uint32_t c = 0; c < kDim; ++c) out[(static_cast<size_t>(t) * kHeads + h) * kDim + c] = static_cast<float>(o[c]);
  }
};

inline calib::SyntheticModel small_model(uint32_t layers = 1, uint32_t seed = 1) {
  calib::SyntheticShape shape;
  shape.layers = layers;
  shape.heads = kHeads;
  shape.kv_heads = kKvHeads;
  shape.head_dim = kDim;
  shape.seed = seed;
  return calib::SyntheticModel(shape);
}

inline LearnModel learn_model(const calib::SyntheticModel& model, uint32_t layers = 1) {
  LearnModel result;
  result.id = {"synthetic", 42, layers, kHeads, kKvHeads, kDim};
  result.ropes.assign(layers, model.rope());
  return result;
}

inline std::unique_ptr<Learner> make_learner(LearnModel model, const LearnSettings& settings) {
  auto made = Learner::create(std::move(model), settings);
  return made.ok() ? std::move(*made) : nullptr;
}

}  // namespace tierkv::learn
