#include "cache/observe.h"

#include <algorithm>
#include <cmath>

#include "quant/row_sums.h"

namespace tierkv::cache {
namespace {

// The first view of tokens that are not archived: they are the last of a stream.
uint32_t first_recent(const StreamViews& views) {
  const auto recent =
      std::find_if(views.tiers.begin(), views.tiers.end(), [](Tier t) { return t == Tier::warm || t == Tier::hot; });
  return static_cast<uint32_t>(recent - views.tiers.begin());
}

// Rows in use at or before a position. Blocks that lie before it whole are counted and not looked through: a step of a long
// sequence asks for every head.
uint32_t tokens_seen(const HeadStream& stream, uint32_t at) {
  uint32_t seen = 0;
  for (const tiers::BlockRef& ref : stream.blocks) {
    if (ref.first_position > at) break;
    uint32_t end = ref.rows;
    while (end > 0 && !ref.alive(end - 1)) --end;
    if (end == 0 || ref.position(end - 1) <= at) {
      seen += ref.live;
      continue;
    }
    for (uint32_t row = 0; row < end; ++row) seen += ref.alive(row) && ref.position(row) <= at ? 1 : 0;
  }
  for (uint32_t row = 0; row < stream.tail.rows(); ++row) seen += stream.tail.position(row) <= at ? 1 : 0;
  return seen;
}

// statistic = fade·statistic + sum, for each row. No sums are zeros.
void fade_and_add(float* stats, size_t stride, float fade, const float* sums, float times, uint32_t rows) {
  if (!sums) {
    for (uint32_t t = 0; t < rows; ++t) stats[t * stride] *= fade;
  } else if (stride == 1 && times == 1.0f) {
    quant::fade_add(stats, fade, sums, rows);
  } else {
    for (uint32_t t = 0; t < rows; ++t) stats[t * stride] = stats[t * stride] * fade + sums[t] * times;
  }
}

}  // namespace

StreamObserver::StreamObserver(const ObserveSettings& settings, const HeadStream& stream, const StreamViews& views,
                               std::span<const uint32_t> positions, MassReport* report, uint32_t length)
    : settings_(settings),
      views_(views),
      positions_(positions),
      report_(report),
      report_base_(static_cast<size_t>(stream.head) * length) {
  std::fill_n(lane_of_, policy::kNumSignals, kNoLane);
  if (settings.recent_only) from_ = first_recent(views);
  for (size_t v = from_; v < views.views.size(); ++v) rows_ += views.views[v].rows;
  plan_lanes();
  if (keeps(policy::kLowCount)) plan_low_counts(stream);
  habit_ = std::ldexp(1.0f, -static_cast<int>(std::min(closings_, 100u)));
  faded_ = std::pow(policy::kFading, static_cast<float>(positions_.size()));
  if (report_ || settings_.blocks) {
    for (size_t v = 0; v < views.views.size(); ++v) {
      const attn::BlockView& view = views.views[v];
      blocks_.push_back({stream.head, views.tiers[v], view.ctx.first_position, view.rows, 0.0});
    }
  }
  for (const Lane& lane : lanes_) {
    const bool all = std::all_of(lane.weights.begin(), lane.weights.end(), [](float w) { return w == 1.0f; });
    asked_.push_back({all ? nullptr : lane.weights.data(), lane.low ? below_.data() : nullptr});
  }
}

// Statistics with the same weights share a sum: with one query nearly all do.
int StreamObserver::lane(std::vector<float> weights, bool low) {
  if (std::all_of(weights.begin(), weights.end(), [](float w) { return w == 0.0f; })) return kNoLane;
  for (size_t l = 0; l < lanes_.size(); ++l) {
    if (lanes_[l].low == low && lanes_[l].weights == weights) return static_cast<int>(l);
  }
  lanes_.push_back({std::move(weights), low});
  return static_cast<int>(lanes_.size() - 1);
}

void StreamObserver::plan_lanes() {
  const size_t queries = positions_.size();
  std::vector<uint32_t> closed(queries);  // windows that end with query q or before it
  uint32_t in_window = settings_.window_queries;
  for (size_t q = 0; q < queries; ++q) {
    if (++in_window >= settings_.observation) in_window = 0, ++closings_;
    closed[q] = closings_;
  }
  const auto weights = [&](auto&& weight) {
    std::vector<float> out(queries);
    for (size_t q = 0; q < queries; ++q) out[q] = weight(q);
    return out;
  };
  // How many windows ended before query q came: the one it is in.
  const auto window_of = [&](size_t q) { return q == 0 ? 0u : closed[q - 1]; };
  const auto all = [](size_t) { return 1.0f; };
  if (report_ || settings_.blocks) report_lane_ = lane(weights(all));
  if (keeps(policy::kMassTotal)) lane_of_[policy::kMassTotal] = lane(weights(all));
  if (keeps(policy::kMassLast))
    lane_of_[policy::kMassLast] = lane(weights([&](size_t q) { return q + 1 == queries ? 1.0f : 0.0f; }));
  if (keeps(policy::kMassWindow))
    lane_of_[policy::kMassWindow] = lane(weights([&](size_t q) { return window_of(q) == closings_ ? 1.0f : 0.0f; }));
  if (keeps(policy::kMassBefore))
    lane_of_[policy::kMassBefore] = lane(weights([&](size_t q) { return window_of(q) + 1 == closings_ ? 1.0f : 0.0f; }));
  if (keeps(policy::kMassFading))
    lane_of_[policy::kMassFading] =
        lane(weights([&](size_t q) { return std::pow(policy::kFading, static_cast<float>(queries - 1 - q)); }));
  // ScissorHands' history fades by half with every window, so that old habits count for less and less.
  if (keeps(policy::kLowCount)) {
    lane_of_[policy::kLowCount] = lane(
        weights([&](size_t q) { return std::ldexp(1.0f, -static_cast<int>(std::min(closings_ - window_of(q), 100u))); }), true);
  }
}

// Less than 1/t of a query's mass, t the tokens that it saw.
void StreamObserver::plan_low_counts(const HeadStream& stream) {
  for (const uint32_t at : positions_) {
    below_.push_back(static_cast<float>(settings_.group) / static_cast<float>(std::max(tokens_seen(stream, at), 1u)));
  }
}

attn::HeadMass StreamObserver::wanted() {
  attn::HeadMass mass{from_, sums_, {}, rows_};
  if (lanes_.empty()) {  // nothing counts: no view is asked for
    mass.from = static_cast<uint32_t>(views_.views.size());
    mass.rows = 0;
  } else if (asked_.size() > 1 || !asked_[0].plain()) {
    mass.lanes = asked_;
  }
  return mass;
}

// Statistics lie block by block, apart from each other, which no hardware prefetcher foresees: waiting for them was half of what it
// cost to listen.
void StreamObserver::fetch_stats(size_t v) const {
  if (v >= views_.views.size() || !views_.stats[v]) return;
  const size_t floats = size_t{views_.views[v].rows} * settings_.signals;
  for (size_t i = 0; i < floats; i += 16) __builtin_prefetch(views_.stats[v] + i);
}

void StreamObserver::fold() {
  constexpr size_t kAhead = 4;
  for (size_t v = from_; v < from_ + kAhead && settings_.signals; ++v) fetch_stats(v);
  size_t at = 0;
  for (size_t v = from_; v < views_.views.size(); at += views_.views[v++].rows) {
    if (settings_.signals) fetch_stats(v + kAhead);
    if (report_lane_ != kNoLane) report_view(v, sums_ + static_cast<size_t>(report_lane_) * rows_ + at);
    if (settings_.signals && views_.stats[v]) fold_view(views_.stats[v], sums_ + at, views_.views[v].rows);
  }
}

void StreamObserver::report_view(size_t v, const float* sums) {
  const attn::BlockView& view = views_.views[v];
  for (uint32_t t = 0; t < view.rows; ++t) {
    blocks_[v].mass += sums[t];
    const uint32_t position = view.position(t);
    if (report_ && report_->want_tokens && position != kDeadPosition) report_->tokens[report_base_ + position] += sums[t];
  }
}

void StreamObserver::fold_view(float* stats, const float* sums, uint32_t rows) const {
  const auto fold = [&](policy::Signal signal, float fade) {
    if (!keeps(signal)) return;
    const float* lane = lane_of_[signal] < 0 ? nullptr : sums + static_cast<size_t>(lane_of_[signal]) * rows_;
    const float times = signal == policy::kMassTotal ? settings_.total_times : 1.0f;
    fade_and_add(stats + slot(signal), settings_.signals, fade, lane, times, rows);
  };
  fold(policy::kMassTotal, 1.0f);
  fold(policy::kMassLast, 0.0f);
  // A window that ends becomes the one before. What it held when the call began is part of it if it is the first to end.
  if (closings_ == 1 && keeps(policy::kMassWindow) && keeps(policy::kMassBefore)) {
    const size_t stride = settings_.signals;
    for (uint32_t t = 0; t < rows; ++t) {
      stats[t * stride + static_cast<size_t>(slot(policy::kMassBefore))] =
          stats[t * stride + static_cast<size_t>(slot(policy::kMassWindow))];
    }
    fold(policy::kMassBefore, 1.0f);
  } else if (closings_ > 1) {
    fold(policy::kMassBefore, 0.0f);
  }
  fold(policy::kMassWindow, closings_ == 0 ? 1.0f : 0.0f);
  fold(policy::kLowCount, habit_);
  fold(policy::kMassFading, faded_);
}

}  // namespace tierkv::cache
