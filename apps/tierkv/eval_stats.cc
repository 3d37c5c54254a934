// eval_stats.cc — vocabularies are large and settings many, so the loops over a row are written in lanes that compilers vectorise
// without being allowed to reorder sums.
#include "eval_stats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace tierkv::cli {
namespace {

constexpr size_t kLanes = 16;
constexpr size_t kBlock = 64 * kLanes;  // floats summed in single precision before they go into a double

// exp(x) for x <= 0, relative error below 3e-7; never a denormal. Comparing bits in place of floats is what lets gcc vectorise it.
inline float exp_negative(float x) {
  constexpr uint32_t kLeast = 0xC2AE0000u;  // -87
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const float clamped = std::bit_cast<float>(bits > kLeast ? kLeast : bits);
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float shifted = clamped * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float f = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.0f / 720.0f;
  p = p * f + 1.0f / 120.0f;
  p = p * f + 1.0f / 24.0f;
  p = p * f + 1.0f / 6.0f;
  p = p * f + 0.5f;
  p = p * f + 1.0f;
  p = p * f + 1.0f;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  return p * std::bit_cast<float>((exponent + 127) << 23);
}

// Floats as integers in the same order; NaNs lie beyond the infinities on both sides.
inline int32_t ordered(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x);
  return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

// NaN when there is one.
float largest(std::span<const float> row) {
  int32_t high[kLanes], low[kLanes];
  std::fill(high, high + kLanes, std::numeric_limits<int32_t>::min());
  std::fill(low, low + kLanes, std::numeric_limits<int32_t>::max());
  auto see = [&](size_t i, size_t lane) {
    const int32_t key = ordered(row[i]);
    high[lane] = high[lane] < key ? key : high[lane];
    low[lane] = low[lane] > key ? key : low[lane];
  };
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) see(i + j, j);
  }
  for (; i < row.size(); ++i) see(i, 0);
  if (*std::min_element(low, low + kLanes) < ordered(-std::numeric_limits<float>::infinity()))
    return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(ordered(std::bit_cast<float>(*std::max_element(high, high + kLanes))));
}

// Σ term(i): floats within a block, doubles across.
template <class Term>
double sum(size_t count, Term term) {
  double total = 0.0;
  size_t i = 0;
  while (i + kLanes <= count) {
    float lanes[kLanes] = {};
    const size_t end = std::min(count - count % kLanes, i + kBlock);
    for (; i < end; i += kLanes) {
      for (size_t j = 0; j < kLanes; ++j) lanes[j] += term(i + j);
    }
    for (const float lane : lanes) total += static_cast<double>(lane);
  }
  for (; i < count; ++i) total += static_cast<double>(term(i));
  return total;
}

uint32_t find_top(std::span<const float> row, float top) {
  return static_cast<uint32_t>(std::find(row.begin(), row.end(), top) - row.begin());
}

}  // namespace

RowSummary summarise(std::span<const float> logits) {
  const float top = largest(logits);
  const float* row = logits.data();
  const double total = sum(logits.size(), [=](size_t i) { return exp_negative(row[i] - top); });
  return {static_cast<double>(top) + std::log(total), find_top(logits, top)};
}

void ReferenceRow::set(std::span<const float> logits) {
  logits_.assign(logits.begin(), logits.end());
  weights_.resize(logits.size());
  const float top = largest(logits);
  const float* row = logits_.data();
  float* weights = weights_.data();
  for (size_t i = 0; i < logits.size(); ++i) weights[i] = exp_negative(row[i] - top);
  weight_sum_ = sum(logits.size(), [=](size_t i) { return weights[i]; });
  summary_ = {static_cast<double>(top) + std::log(weight_sum_), find_top(logits, top)};
}

// Σ p (log p − log q) = Σ p (logit − logit') − (lse − lse')
double ReferenceRow::divergence(std::span<const float> logits, const RowSummary& other) const {
  const float* own = logits_.data();
  const float* weights = weights_.data();
  const float* row = logits.data();
  const double cross = sum(logits_.size(), [=](size_t i) { return weights[i] * (own[i] - row[i]); });
  return cross / weight_sum_ - (summary_.log_sum_exp - other.log_sum_exp);
}

void PairedScores::add(size_t block, double nll, double reference_nll, double kl, bool same_top) {
  if (block >= blocks_.size()) blocks_.resize(block + 1);
  Sums& sums = blocks_[block];
  ++sums.tokens;
  sums.same += same_top;
  sums.nll += nll;
  sums.reference += reference_nll;
  sums.kl += kl;
}

PairedResult PairedScores::result() const {
  PairedResult result;
  Sums all;
  for (const Sums& block : blocks_) {
    all.tokens += block.tokens;
    all.same += block.same;
    all.nll += block.nll;
    all.reference += block.reference;
    all.kl += block.kl;
    result.blocks += block.tokens > 0;
  }
  result.tokens = all.tokens;
  if (all.tokens == 0) return result;
  const double count = static_cast<double>(all.tokens);
  result.ppl = std::exp(all.nll / count);
  const double reference = std::exp(all.reference / count);
  // The same sum divided twice would leave a rounding error where there is no difference at all.
  result.delta = reference * std::expm1((all.nll - all.reference) / count);
  result.kld = all.kl / count;
  result.top1 = static_cast<double>(all.same) / count;

  const double b = static_cast<double>(result.blocks);
  auto error = [&](auto value) {
    if (result.blocks < 2) return std::numeric_limits<double>::quiet_NaN();
    const double mean = value(all) / count;
    double squares = 0.0;
    for (const Sums& block : blocks_) {
      const double rest = value(block) - static_cast<double>(block.tokens) * mean;
      squares += rest * rest;
    }
    return std::sqrt(b / (b - 1.0) * squares) / count;
  };
  result.ppl_se = error([&](const Sums& s) { return result.ppl * s.nll; });
  result.delta_se = error([&](const Sums& s) { return reference * (s.nll - s.reference) + (result.ppl - reference) * s.nll; });
  result.kld_se = error([&](const Sums& s) { return s.kl; });
  return result;
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const double at = std::clamp(share, 0.0, 1.0) * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

}  // namespace tierkv::cli
