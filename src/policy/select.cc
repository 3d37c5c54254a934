#include "policy/select.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace tierkv::policy {
namespace {

size_t count_below(std::span<const uint32_t> positions, uint32_t limit) {
  return static_cast<size_t>(std::lower_bound(positions.begin(), positions.end(), limit) - positions.begin());
}

}  // namespace

uint32_t recent_to_protect(uint32_t wanted, uint32_t unobserved, uint32_t budget, uint32_t sinks) {
  const uint32_t room = budget - std::min(budget, sinks);
  const uint32_t most = std::max(1u, static_cast<uint32_t>(uint64_t{room} * 3 / 4));
  return std::clamp(std::max(std::min(wanted, budget / 2), unobserved), 1u, most);
}

size_t sink_count(const ChoiceInput& in) { return count_below(in.positions, in.protect_first); }

void keep_top(const ChoiceInput& in, std::span<const float> score, std::span<uint8_t> keep) {
  const size_t n = in.positions.size();
  const size_t budget = std::min<size_t>(in.budget, n);
  const size_t sinks = std::min(sink_count(in), budget);
  const size_t recent = std::min({static_cast<size_t>(in.protect_recent), n - sinks, budget - sinks});
  std::fill(keep.begin(), keep.end(), uint8_t{0});
  std::fill_n(keep.begin(), sinks, uint8_t{1});
  std::fill_n(keep.end() - static_cast<ptrdiff_t>(recent), recent, uint8_t{1});

  const size_t wanted = budget - sinks - recent;
  if (wanted == 0) return;
  std::vector<uint32_t> order(n - sinks - recent);
  std::iota(order.begin(), order.end(), static_cast<uint32_t>(sinks));
  const auto value = [&](uint32_t i) { return std::isnan(score[i]) ? -std::numeric_limits<float>::infinity() : score[i]; };
  // The index breaks ties, so the order is total and the choice does not depend on the library's selection algorithm.
  const auto better = [&](uint32_t a, uint32_t b) { return value(a) != value(b) ? value(a) > value(b) : a > b; };
  if (wanted < order.size()) std::nth_element(order.begin(), order.begin() + static_cast<ptrdiff_t>(wanted), order.end(), better);
  for (size_t i = 0; i < wanted; ++i) keep[order[i]] = 1;
}

void keep_sinks_and_window(const ChoiceInput& in, uint32_t sinks, uint32_t window, std::span<uint8_t> keep) {
  const size_t n = in.positions.size();
  const size_t budget = std::min<size_t>(in.budget, n);
  const size_t first = std::min(count_below(in.positions, std::max(sinks, in.protect_first)), budget);
  size_t last = budget - first;
  if (window != 0) last = std::min<size_t>(last, std::max(window, in.protect_recent));
  last = std::min(last, n - first);
  std::fill(keep.begin(), keep.end(), uint8_t{0});
  std::fill_n(keep.begin(), first, uint8_t{1});
  std::fill_n(keep.end() - static_cast<ptrdiff_t>(last), last, uint8_t{1});
}

}  // namespace tierkv::policy
