// exact.h — attention of one KV head in double precision over what its blocks decode to, on the processor: what a result on the
// device has to be. Blocks are shared out between threads, because 512K tokens for eight query heads take seconds on one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "attn/backend.h"

namespace tierkv::cuda {

// A softmax under way for one query: of scores below `top`, with the weights' sum and the weighted sum of values.
struct ExactState {
  double top = -INFINITY, total = 0.0;
  std::vector<double> sums;

  void rescale(double to) {
    const double by = std::exp(top - to);
    total *= by, top = to;
    for (double& s : sums) s *= by;
  }
  void add(ExactState other) {
    if (!(other.total > 0.0)) return;
    if (other.top > top) {
      rescale(other.top);
    } else {
      other.rescale(top);
    }
    total += other.total;
    for (size_t c = 0; c < sums.size(); ++c) sums[c] += other.sums[c];
  }
};

inline double exact_dot(const float* a, const float* b, uint32_t dim) {
  double lanes[8] = {};
  for (uint32_t c = 0; c < dim; c += 8) {
    for (uint32_t l = 0; l < 8; ++l) lanes[l] += static_cast<double>(a[c + l]) * b[c + l];
  }
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

// Some blocks for `states.size()` queries that lie one behind the other.
inline void exact_blocks(std::span<const attn::BlockView> views, const float* queries, uint32_t dim, std::span<ExactState> states) {
  std::vector<float> keys, values;
  std::vector<double> scores;
  for (const attn::BlockView& view : views) {
    const size_t rows = view.rows;
    keys.resize(rows * dim), values.resize(rows * dim), scores.resize(rows);
    view.key_codec->decode(view.keys, view.ctx, 0, view.rows, keys.data());
    view.value_codec->decode(view.values, view.ctx, 0, view.rows, values.data());
    for (size_t g = 0; g < states.size(); ++g) {
      ExactState& state = states[g];
      double top = state.top;
      for (size_t i = 0; i < rows; ++i) {
        scores[i] = exact_dot(queries + g * dim, keys.data() + i * dim, dim) / std::sqrt(static_cast<double>(dim));
        top = std::max(top, scores[i]);
      }
      if (top > state.top) state.rescale(top);
      for (size_t i = 0; i < rows; ++i) {
        const double weight = std::exp(scores[i] - top);
        state.total += weight;
        for (uint32_t c = 0; c < dim; ++c) state.sums[c] += weight * values[i * dim + c];
      }
    }
  }
}

// group x dim results. dim: a multiple of 8.
inline std::vector<double> exact_attention(std::span<const attn::BlockView> views, const float* queries, uint32_t group,
                                           uint32_t dim) {
  const size_t parts = std::clamp<size_t>(views.size() / 64, 1, std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::vector<ExactState>> states(parts, std::vector<ExactState>(group));
  std::vector<std::thread> threads;
  for (size_t p = 0; p < parts; ++p) {
    threads.emplace_back([&, p] {
      for (ExactState& state : states[p]) state.sums.resize(dim);
      const size_t first = views.size() * p / parts;
      exact_blocks(views.subspan(first, views.size() * (p + 1) / parts - first), queries, dim, states[p]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<double> results;
  for (uint32_t g = 0; g < group; ++g) {
    for (size_t p = 1; p < parts; ++p) states[0][g].add(std::move(states[p][g]));
    for (const double sum : states[0][g].sums) results.push_back(sum / states[0][g].total);
  }
  return results;
}

}  // namespace tierkv::cuda
