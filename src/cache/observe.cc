#include "cache/observe.h"

#include <algorithm>

namespace tierkv::cache {

StreamObserver::StreamObserver(const ObserveSettings& settings, const HeadStream& stream, const StreamViews& views,
                               const uint32_t* positions, MassReport* report, uint32_t length)
    : settings_(settings),
      views_(views),
      positions_(positions),
      report_(report),
      report_base_(static_cast<size_t>(stream.head) * length),
      window_queries_(settings.window_queries) {
  if (slot(policy::kLowCount) >= 0) tiers::live_positions(stream, live_);
  if (report_) {
    for (size_t v = 0; v < views.views.size(); ++v) {
      const attn::BlockView& view = views.views[v];
      blocks_.push_back({stream.head, views.tiers[v], view.ctx.first_position, view.rows, 0.0});
    }
  }
}

template <class Body>
void StreamObserver::for_each_token(Body&& body) {
  for (size_t v = 0; v < views_.views.size(); ++v) {
    for (uint32_t t = 0; views_.stats[v] && t < views_.views[v].rows; ++t)
      body(views_.stats[v] + static_cast<size_t>(t) * settings_.signals);
  }
}

void StreamObserver::add(uint32_t query, uint32_t view, const float* mass, uint32_t rows) {
  const int last = slot(policy::kMassLast);
  if (!query_open_) {
    query_open_ = true;
    if (last >= 0) for_each_token([&](float* stats) { stats[last] = 0.0f; });
  }
  if (report_) {
    const attn::BlockView& block = views_.views[view];
    for (uint32_t t = 0; t < rows; ++t) {
      blocks_[view].mass += mass[t];
      const uint32_t position = block.position(t);
      if (report_->want_tokens && position != kDeadPosition) report_->tokens[report_base_ + position] += mass[t];
    }
  }
  if (!settings_.signals || !views_.stats[view]) return;
  const int total = slot(policy::kMassTotal), window = slot(policy::kMassWindow), low = slot(policy::kLowCount);
  float threshold = 0.0f;
  uint32_t at = 0;
  if (low >= 0) {
    at = positions_[query];
    const auto seen = std::upper_bound(live_.begin(), live_.end(), at) - live_.begin();
    threshold = static_cast<float>(settings_.group) / static_cast<float>(std::max<ptrdiff_t>(seen, 1));
  }
  float* stats = views_.stats[view];
  for (uint32_t t = 0; t < rows; ++t, stats += settings_.signals) {
    if (total >= 0) stats[total] += mass[t];
    if (last >= 0) stats[last] = mass[t];
    if (window >= 0) stats[window] += mass[t];
    if (low >= 0 && views_.views[view].position(t) <= at && mass[t] < threshold) stats[low] += 1.0f;
  }
}

void StreamObserver::end_query(uint32_t) {
  query_open_ = false;
  if (settings_.signals && ++window_queries_ >= settings_.observation) close_window();
}

// The current window becomes the one before. ScissorHands' history fades by half instead, so that old habits count for less and
// less.
void StreamObserver::close_window() {
  window_queries_ = 0;
  const int window = slot(policy::kMassWindow), before = slot(policy::kMassBefore), low = slot(policy::kLowCount);
  if (window < 0 && low < 0) return;
  for_each_token([&](float* stats) {
    if (window >= 0) {
      if (before >= 0) stats[before] = stats[window];
      stats[window] = 0.0f;
    }
    if (low >= 0) stats[low] *= 0.5f;
  });
}

}  // namespace tierkv::cache
