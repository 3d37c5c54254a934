// prober.h — runs a model over one window of text with an error in one layer, and compares its predictions with FP16's.
//
// Threads:  one call at a time on a model.
#pragma once

#include <llama.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "llama/collect.h"
#include "llama/probe_trials.h"
#include "tierkv/cache.h"
#include "tierkv/calibrate.h"
#include "tierkv/calibration.h"

namespace tierkv::llama {

// The reference's predictions of the scored tokens of one window.
class Reference {
 public:
  void clear() { probabilities_.clear(), level_.clear(); }
  size_t rows() const { return level_.size(); }
  void add(std::span<const float> logits) {
    const double sum = log_sum_exp(logits);
    const size_t at = probabilities_.size();
    probabilities_.resize(at + logits.size());
    for (size_t i = 0; i < logits.size(); ++i) probabilities_[at + i] = std::exp(static_cast<float>(logits[i] - sum));
    level_.push_back(0.0);
    level_.back() = expectation(level_.size() - 1, logits) - sum;
  }
  // KL(reference || other): 0 exactly for the same logits.
  double divergence(size_t row, std::span<const float> logits) const {
    return level_[row] - (expectation(row, logits) - log_sum_exp(logits));
  }

 private:
  static double log_sum_exp(std::span<const float> logits) {
    const float top = *std::max_element(logits.begin(), logits.end());
    double sum = 0.0;
    for (const float x : logits) sum += static_cast<double>(std::exp(x - top));
    return static_cast<double>(top) + std::log(sum);
  }
  double expectation(size_t row, std::span<const float> logits) const {
    const float* p = probabilities_.data() + row * logits.size();
    double sum = 0.0;
    for (size_t i = 0; i < logits.size(); ++i) sum += static_cast<double>(p[i]) * static_cast<double>(logits[i]);
    return sum;
  }
  std::vector<float> probabilities_;  // [row][token]
  std::vector<double> level_;         // of each row, minus its entropy
};

class Prober {
 public:
  Prober(const ModelShape& shape, const CalibrationPtr& tables, const CalibrateOptions& options)
      : shape_(shape),
        tables_(tables),
        options_(options),
        width_(static_cast<size_t>(shape.kv_heads) * shape.head_dim),
        rows_(shape.layers) {}

  Status open();
  // Runs the window and keeps the rows of its first `prefix` tokens, as they are and as the codec makes them, and what the model
  // predicts then.
  Status begin(const TokenList& window, uint32_t prefix);
  Status run(Trial& trial);

 private:
  struct Rows {
    std::vector<uint16_t> exact[2],
        coded[2];  // by side: [token][kv head][head_dim], fp16; coded is empty in layers that are not probed
  };

  void keep(const AttentionSeen& seen);
  Status code();
  Status play(const Trial* trial, const std::function<void(size_t, std::span<const float>)>& on_logits);
  bool stopped() const { return options_.cancelled && options_.cancelled(); }
  static bool is_stopped(void* user) { return static_cast<const Prober*>(user)->stopped(); }

  const ModelShape& shape_;
  CalibrationPtr tables_;
  const CalibrateOptions& options_;
  size_t width_;
  std::unique_ptr<AdaptiveKVCache> cache_, coder_;
  std::unique_ptr<Host> host_;
  std::unique_ptr<llama_context, decltype(&llama_free)> context_{nullptr, llama_free};
  bool keeping_ = false;
  std::vector<Rows> rows_;  // of each layer
  TokenList scored_;
  uint32_t prefix_ = 0;
  Reference reference_;
};

}  // namespace tierkv::llama
