#include "policy/snapkv.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "policy/policies.h"
#include "policy/select.h"

namespace tierkv::policy {
namespace {

// out[i] = max of in[j] over first <= j < last with |positions[j] - positions[i]| <= reach; a monotone queue makes it linear.
void max_pool(std::span<const uint32_t> positions, size_t first, size_t last, uint32_t reach, const std::vector<float>& in,
              std::vector<float>& out) {
  std::deque<size_t> queue;  // candidates, values falling from front to back
  size_t next = first;
  for (size_t i = first; i < last; ++i) {
    for (; next < last && positions[next] <= static_cast<uint64_t>(positions[i]) + reach; ++next) {
      while (!queue.empty() && in[queue.back()] <= in[next]) queue.pop_back();
      queue.push_back(next);
    }
    while (positions[queue.front()] + static_cast<uint64_t>(reach) < positions[i]) queue.pop_front();
    out[i] = in[queue.front()];
  }
}

}  // namespace

void SnapKV::choose(const ChoiceInput& in, std::span<uint8_t> keep) const {
  const size_t n = in.positions.size();
  ChoiceInput widened = in;
  widened.protect_recent = std::max(in.protect_recent, std::min(observation_, in.budget / 2));

  const size_t first = std::min(sink_count(in), n);
  const size_t last = std::max(first, n - std::min<size_t>(widened.protect_recent, n));
  const uint32_t seen = std::min(in.window_queries, observation_);
  const float share = observation_ ? static_cast<float>(observation_ - seen) / static_cast<float>(observation_) : 0.0f;
  std::vector<float> mass(n, 0.0f);
  for (size_t i = first; i < last; ++i) {
    mass[i] = in.signal[kMassWindow][i] + (share > 0.0f ? share * in.signal[kMassBefore][i] : 0.0f);
    if (std::isnan(mass[i])) mass[i] = -std::numeric_limits<float>::infinity();  // the queue needs a total order
  }
  std::vector<float> score(n, 0.0f);
  max_pool(in.positions, first, last, pool_ / 2, mass, score);
  keep_top(widened, score, keep);
}

std::unique_ptr<EvictionPolicy> make_snapkv(const EvictionConfig& config) { return std::make_unique<SnapKV>(config); }

}  // namespace tierkv::policy
