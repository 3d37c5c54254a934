// eval_stats.h — the arithmetic behind `tierkv ppl` and `tierkv bench`: rows of logits compared with FP16's, paired errors,
// quantiles.
//
// Error:    log-sum-exp and KL divergence are good to about 1e-6; identical rows have a divergence of exactly 0.
// Threads:  stateless, or one object a thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tierkv::cli {

struct RowSummary {
  double log_sum_exp = 0.0;  // NaN when a logit is not a number
  uint32_t top = 0;          // the likeliest token, the first of equals
};
RowSummary summarise(std::span<const float> logits);

// The reference's logits of one token, kept while the other settings compute theirs.
class ReferenceRow {
 public:
  void set(std::span<const float> logits);
  // KL(reference || other), in nats. `other` is the summary of the same logits.
  double divergence(std::span<const float> logits, const RowSummary& other) const;
  const RowSummary& summary() const { return summary_; }
  double nll(uint32_t token) const { return summary_.log_sum_exp - static_cast<double>(logits_[token]); }

 private:
  std::vector<float> logits_, weights_;  // weights: exp(logit - largest)
  double weight_sum_ = 0.0;
  RowSummary summary_;
};

struct PairedResult {
  uint64_t tokens = 0, blocks = 0;
  double ppl = 0.0;
  double ppl_se = 0.0;    // of the perplexity itself: how much the choice of text matters
  double delta = 0.0;     // ppl minus the reference's
  double delta_se = 0.0;  // of that difference, paired: both saw the same tokens. NaN with fewer than two blocks
  double kld = 0.0, kld_se = 0.0;
  double top1 = 0.0;  // share of tokens for which both think the same one likeliest
};

// Scores of one setting beside the reference's. Neighbouring tokens are not independent (a topic, a list, a damaged block of the
// cache), so they are summed in blocks and the blocks are the sample: with z = ppl·nll − ppl_ref·nll_ref, the linear part of the
// difference, se² = B/(B−1) · Σ_b (z_b − n_b·mean z)² / N².
class PairedScores {
 public:
  void add(size_t block, double nll, double reference_nll, double kl, bool same_top);
  PairedResult result() const;

 private:
  struct Sums {
    uint64_t tokens = 0, same = 0;
    double nll = 0.0, reference = 0.0, kl = 0.0;
  };
  std::vector<Sums> blocks_;
};

// Linear between the order statistics; 0 for no values. share is 0..1.
double quantile(std::vector<double> values, double share);

}  // namespace tierkv::cli
