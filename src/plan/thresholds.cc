#include "plan/thresholds.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/status_macros.h"
#include "tierkv/config.h"

namespace tierkv::plan {
namespace {

constexpr uint32_t kMaxHot = 4096, kMinHot = 32;
constexpr uint32_t kMaxBits = 4, kMinBits = 2;

}  // namespace

LayerThresholds more_precise(LayerThresholds t) {
  // In integers: 1.2 and 0.9 are not exact in binary, and ceil() would show it.
  if (t.hot < kMaxHot) t.hot = static_cast<uint32_t>(std::min<uint64_t>((uint64_t{t.hot} * 12 + 9) / 10, kMaxHot));
  if (t.archive_bits >= kMinBits && t.archive_bits < kMaxBits) ++t.archive_bits;
  return t;
}

LayerThresholds more_compact(LayerThresholds t) {
  if (t.hot > kMinHot && t.hot != kAll) t.hot = std::max(static_cast<uint32_t>(uint64_t{t.hot} * 9 / 10), kMinHot);
  if (t.archive_bits > kMinBits && t.archive_bits <= kMaxBits) --t.archive_bits;
  return t;
}

double QualityTracker::comfort() const { return std::min(1.1 * target_, 0.5 * (target_ + 1.0)); }

double QualityTracker::mean_of_last(size_t count) const {
  count = std::min(count, scores_.size());
  if (count == 0) return 0.0;
  return std::accumulate(scores_.end() - static_cast<ptrdiff_t>(count), scores_.end(), 0.0) / static_cast<double>(count);
}

Result<bool> QualityTracker::add(double score, std::span<LayerThresholds> thresholds) {
  if (!std::isfinite(score) || score < 0.0) {
    return error(StatusCode::invalid_argument, "a quality score is a number from 0 to 1 (1: as good as FP16), not ", score);
  }
  scores_.push_back(std::min(score, 1.0));
  if (scores_.size() > kHistory) scores_.pop_front();
  ++samples_, ++since_change_;
  if (since_change_ < kMinSamples) return false;

  const double mean = mean_of_last(static_cast<size_t>(std::min<uint64_t>(since_change_, kRecent)));
  const Move move = mean < target_ ? Move::up : mean > comfort() && samples_ >= no_shrink_before_ ? Move::down : Move::none;
  if (move == Move::none) return false;
  bool changed = false;
  for (LayerThresholds& t : thresholds) {
    const LayerThresholds next = move == Move::up ? more_precise(t) : more_compact(t);
    changed |= next != t;
    t = next;
  }
  if (!changed) return false;  // at the end of the road: nothing new to measure
  if (move == Move::up && last_move_ == Move::down) no_shrink_before_ = samples_ + kHistory;
  last_move_ = move;
  since_change_ = 0;
  ++adaptations_;
  return true;
}

QualityMetrics QualityTracker::metrics() const {
  QualityMetrics out;
  out.samples = samples_;
  out.mean = mean_of_last(kHistory);
  out.recent_mean = mean_of_last(kRecent);
  out.target = target_;
  out.adaptations = adaptations_;
  return out;
}

}  // namespace tierkv::plan
