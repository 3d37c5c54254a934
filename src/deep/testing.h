// testing.h — a small made-up model for the tests of the deep archive: layers that resemble the ones before them, keys that turn,
// metrics that care for some directions more than for others.
#pragma once

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "base/f16.h"
#include "deep/archive.h"
#include "solve/testing.h"

namespace tierkv::deep::testing {

inline constexpr uint32_t kLayers = 4, kHeads = 2, kDim = 32;

// Rows of every layer as a cache has them: [layer][token][head][dim].
struct Text {
  uint32_t tokens = 0, first = 0;
  std::vector<std::vector<float>> keys, values;

  ReadRows reader() const {
    return [this](uint32_t layer, uint32_t from, uint32_t count, float* k, float* v) {
      const size_t width = static_cast<size_t>(kHeads) * kDim;
      std::copy_n(keys[layer].data() + from * width, count * width, k);
      std::copy_n(values[layer].data() + from * width, count * width, v);
    };
  }
};

class Model {
 public:
  explicit Model(uint32_t seed = 1) : rng_(seed) {
    std::normal_distribution<float> normal;
    const size_t width = 2 * kHeads * kDim;
    for (uint32_t l = 0; l < kLayers; ++l) {
      mix_.emplace_back(width * width);
      for (size_t i = 0; i < mix_[l].size(); ++i)
        mix_[l][i] = normal(rng_) / std::sqrt(static_cast<float>(width)) * std::pow(0.97f, static_cast<float>(i % width));
      offset_.emplace_back(width);
      for (float& x : offset_[l]) x = normal(rng_);
    }
    for (uint16_t p = 0; p < kDim / 2; ++p)
      rope_.push_back({p, static_cast<uint16_t>(p + kDim / 2), std::pow(10000.0, -2.0 * p / kDim)});
    turner_ = std::make_unique<calib::Turner>(rope_, kDim);
    statistics_ = collect(1500);
    auto solved = solve::solve_deep(statistics_, {});
    status_ = solved.status();
    if (solved.ok()) tables_ = std::move(*solved);
  }

  const Status& status() const { return status_; }
  const calib::DeepTables& tables() const { return tables_; }
  const calib::Statistics& statistics() const { return statistics_; }
  ModelTables model_tables(uint64_t id = 42) const {
    return {&tables_, [this](uint32_t) -> const calib::Turner& { return *turner_; }, id};
  }

  Text text(uint32_t tokens, uint32_t first = 4) {
    Text out;
    out.tokens = tokens;
    out.first = first;
    out.keys.assign(kLayers, std::vector<float>(static_cast<size_t>(tokens) * kHeads * kDim));
    out.values = out.keys;
    for (uint32_t t = 0; t < tokens; ++t) {
      const auto x = vectors();
      for (uint32_t l = 0; l < kLayers; ++l)
        put(x[l], first + t, out.keys[l].data() + static_cast<size_t>(t) * kHeads * kDim,
            out.values[l].data() + static_cast<size_t>(t) * kHeads * kDim);
    }
    return out;
  }

 private:
  // Of one token, before RoPE.
  std::vector<std::vector<float>> vectors() {
    std::normal_distribution<float> normal;
    const size_t width = 2 * kHeads * kDim;
    const float loud = std::exp(0.4f * normal(rng_));
    std::vector<float> state(width);
    for (float& s : state) s = loud * normal(rng_);
    std::vector<std::vector<float>> out;
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (float& s : state) s = 0.95f * s + 0.3f * loud * normal(rng_);
      std::vector<float> x = offset_[l];
      for (size_t i = 0; i < width; ++i) {
        for (size_t j = 0; j < width; ++j) x[i] += mix_[l][i * width + j] * state[j];
      }
      out.push_back(std::move(x));
    }
    return out;
  }

  void put(const std::vector<float>& x, uint32_t position, float* keys, float* values) const {
    const size_t half = static_cast<size_t>(kHeads) * kDim;
    turner_->turn(x.data(), kHeads, position, keys);
    std::copy_n(x.data() + half, half, values);
  }

  calib::Statistics collect(uint32_t sampled) {
    std::normal_distribution<double> normal;
    calib::Statistics s;
    s.model = {"made up", 7, kLayers, 2 * kHeads, kHeads, kDim};
    s.tokens = sampled;
    s.ropes.assign(kLayers, rope_);
    s.layers.resize(kLayers);
    const size_t half = static_cast<size_t>(kHeads) * kDim;
    std::vector<float> k(half), v(half);
    for (uint32_t i = 0; i < sampled; ++i) {
      s.positions.push_back(4 + i);
      const auto x = vectors();
      for (uint32_t l = 0; l < kLayers; ++l) {
        put(x[l], 4 + i, k.data(), v.data());
        for (size_t c = 0; c < half; ++c) {
          s.layers[l].keys.push_back(f32_to_f16(k[c]));
          s.layers[l].values.push_back(f32_to_f16(v[c]));
        }
        // Every later query that is far enough gives a token what its first channel says.
        const float later = std::max(0.0f, static_cast<float>(sampled) - static_cast<float>(s.distance + i)) / 1000.0f;
        for (uint32_t h = 0; h < kHeads; ++h) s.layers[l].weight.push_back(later * std::exp(x[l][h * kDim]));
        s.layers[l].influence = s.layers[l].weight;
      }
    }
    for (uint32_t i = 0; i < kLayers * kHeads; ++i) {
      calib::PairSums& sums = s.pairs.emplace_back();
      for (std::vector<double>* m : {&sums.key_block, &sums.key_plain, &sums.value, &sums.queries}) {
        m->assign(kDim * kDim, 0.0);
        for (int r = 0; r < 48; ++r) {
          double q[kDim];
          for (uint32_t c = 0; c < kDim; ++c) q[c] = normal(rng_) * std::exp(-0.1 * c);
          for (uint32_t a = 0; a < kDim; ++a) {
            for (uint32_t b = 0; b < kDim; ++b) (*m)[a * kDim + b] += 1e-3 * q[a] * q[b];
          }
        }
      }
      sums.query_count = 48;
    }
    return s;
  }

  std::mt19937 rng_;
  std::vector<std::vector<float>> mix_, offset_;
  calib::Rope rope_;
  std::unique_ptr<calib::Turner> turner_;
  calib::Statistics statistics_;
  calib::DeepTables tables_;
  Status status_;
};

// Solving takes a moment: one for all tests of a program.
inline Model& model() {
  static Model one;
  return one;
}

// What a file decodes to.
struct Decoded {
  Status status;
  Text text;
};

inline Decoded decoded(std::span<const std::byte> bytes, const ModelTables& model, uint32_t tokens, uint32_t threads = 1) {
  Decoded out;
  out.text.tokens = tokens;
  out.text.keys.assign(kLayers, std::vector<float>(static_cast<size_t>(tokens) * kHeads * kDim));
  out.text.values = out.text.keys;
  out.status = decode(bytes, model, threads, [&](uint32_t layer, uint32_t first, uint32_t count, const float* k, const float* v) {
    const size_t width = static_cast<size_t>(kHeads) * kDim;
    if (first + count > tokens) return;
    std::copy_n(k, count * width, out.text.keys[layer].data() + first * width);
    std::copy_n(v, count * width, out.text.values[layer].data() + first * width);
  });
  return out;
}

// Squared error over squared distance from the mean, keys and values of all layers.
inline double relative_error(const Text& a, const Text& b) {
  double error = 0.0, energy = 0.0;
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (const auto& [x, y] : {std::pair{&a.keys[l], &b.keys[l]}, std::pair{&a.values[l], &b.values[l]}}) {
      for (size_t i = 0; i < x->size(); ++i) {
        const double e = (*x)[i] - (*y)[i];
        error += e * e;
        energy += static_cast<double>((*x)[i]) * (*x)[i];
      }
    }
  }
  return error / energy;
}

}  // namespace tierkv::deep::testing
