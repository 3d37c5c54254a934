// synthetic_statistics.h — statistics of a model that does not exist, for tests: keys with a mean, correlated channels and RoPE;
// queries that look at a few directions. Everything follows from the seed.
#pragma once

#include <cmath>
#include <random>

#include "base/f16.h"
#include "calib/statistics.h"

namespace tierkv::calib {

struct SyntheticShape {
  uint32_t layers = 2, heads = 4, kv_heads = 2, head_dim = 64, tokens = 2048, seed = 1;
  bool rope = true;
};

class SyntheticModel {
 public:
  explicit SyntheticModel(const SyntheticShape& shape) : shape_(shape), random_(shape.seed) {
    const uint32_t d = shape.head_dim;
    for (uint32_t p = 0; p < d / 2 && shape.rope; ++p) {
      rope_.push_back({static_cast<uint16_t>(p), static_cast<uint16_t>(p + d / 2), std::pow(10000.0, -2.0 * p / d)});
    }
    turner_ = std::make_unique<Turner>(rope_, d);
    for (uint32_t h = 0; h < shape.layers * shape.kv_heads; ++h) {
      std::vector<float> mix(static_cast<size_t>(d) * d), mean(d);
      for (uint32_t r = 0; r < d; ++r) {
        mean[r] = 2.0f * normal();
        const float spread = 3.0f * std::pow(0.85f, static_cast<float>(r));
        for (uint32_t c = 0; c < d; ++c) mix[static_cast<size_t>(r) * d + c] = spread * normal() / std::sqrt(static_cast<float>(d));
      }
      mixes_.push_back(mix);
      means_.push_back(mean);
    }
  }

  const Rope& rope() const { return rope_; }

  // A key of one head after RoPE at a position.
  std::vector<float> key(uint32_t layer, uint32_t head, uint32_t position) {
    const uint32_t d = shape_.head_dim;
    const size_t at = static_cast<size_t>(layer) * shape_.kv_heads + head;
    std::vector<float> k = means_[at];
    for (uint32_t r = 0; r < d; ++r) {
      const float x = normal();
      for (uint32_t c = 0; c < d; ++c) k[c] += x * mixes_[at][static_cast<size_t>(r) * d + c];
    }
    turner_->turn(k.data(), 1, position, k.data());
    return k;
  }
  std::vector<float> noise(uint32_t n) {
    std::vector<float> x(n);
    for (float& v : x) v = normal();
    return x;
  }

  Statistics statistics() {
    Statistics s;
    s.model = {"synthetic", 42, shape_.layers, shape_.heads, shape_.kv_heads, shape_.head_dim};
    s.tokens = shape_.tokens;
    s.ropes.assign(shape_.layers, rope_);
    for (uint32_t i = 0; i < shape_.tokens; ++i) s.positions.push_back(s.sinks + i);
    for (uint32_t l = 0; l < shape_.layers; ++l) {
      LayerSample& sample = s.layers.emplace_back();
      for (uint32_t i = 0; i < shape_.tokens; ++i) {
        for (uint32_t h = 0; h < shape_.kv_heads; ++h) {
          for (const float v : key(l, h, s.positions[i])) sample.keys.push_back(f32_to_f16(v));
          for (const float v : noise(shape_.head_dim)) sample.values.push_back(f32_to_f16(v));
          sample.weight.push_back(std::exp(normal()));
          sample.influence.push_back(sample.weight.back());
        }
      }
    }
    for (uint32_t i = 0; i < shape_.layers * shape_.kv_heads; ++i) s.pairs.push_back(pair_sums());
    return s;
  }

 private:
  float normal() { return normal_(random_); }

  // Sums of a few hundred outer products, most of them along a few directions.
  PairSums pair_sums() {
    const uint32_t d = shape_.head_dim;
    PairSums pairs;
    for (std::vector<double>* m : {&pairs.key_block, &pairs.key_plain, &pairs.value, &pairs.queries}) {
      m->assign(static_cast<size_t>(d) * d, 0.0);
      for (int i = 0; i < 300; ++i) {
        std::vector<float> q = noise(d);
        for (uint32_t c = 0; c < d; ++c) q[c] *= std::pow(0.95f, static_cast<float>((c * 7 + i % 3) % d));
        for (uint32_t r = 0; r < d; ++r) {
          for (uint32_t c = 0; c < d; ++c) (*m)[static_cast<size_t>(r) * d + c] += static_cast<double>(q[r]) * q[c];
        }
      }
    }
    pairs.query_count = 300;
    return pairs;
  }

  SyntheticShape shape_;
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
  Rope rope_;
  std::unique_ptr<Turner> turner_;
  std::vector<std::vector<float>> mixes_, means_;
};

}  // namespace tierkv::calib
