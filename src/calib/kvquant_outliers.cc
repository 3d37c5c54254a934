// kvquant_outliers.cc — which values of a block to leave out, so that what is left of each token spans the least.
#include <algorithm>
#include <array>
#include <vector>

#include "calib/kvquant.h"

namespace tierkv::calib {

namespace {

constexpr uint32_t kMost = 8;  // of one token; 1 % of the longest rows is 2.6 a token

// What is left of a token when k of its values are gone: the best way is some of the lowest and some of the highest.
struct TokenEnds {
  std::array<uint32_t, kMost> lowest, highest;  // channels, outermost first
  std::array<double, kMost + 1> square;         // of the range that is left
  std::array<uint32_t, kMost + 1> from_below;   // how many of the k are low ones
};

TokenEnds look_at(const float* row, uint32_t d, std::vector<uint32_t>& order) {
  TokenEnds ends;
  order.resize(d);
  for (uint32_t c = 0; c < d; ++c) order[c] = c;
  // One order for both ends, so that equal values are never taken twice.
  const auto below = [&](uint32_t a, uint32_t b) { return row[a] < row[b] || (row[a] == row[b] && a < b); };
  const auto above = [&](uint32_t a, uint32_t b) { return below(b, a); };
  std::partial_sort(order.begin(), order.begin() + kMost + 1, order.end(), below);
  const uint32_t last_low = order[kMost];
  std::copy_n(order.begin(), kMost, ends.lowest.begin());
  std::partial_sort(order.begin(), order.begin() + kMost + 1, order.end(), above);
  const uint32_t last_high = order[kMost];
  std::copy_n(order.begin(), kMost, ends.highest.begin());
  for (uint32_t k = 0; k <= kMost; ++k) {
    ends.square[k] = -1.0;
    for (uint32_t low = 0; low <= k; ++low) {
      const uint32_t bottom = low < kMost ? ends.lowest[low] : last_low, top = k - low < kMost ? ends.highest[k - low] : last_high;
      const double range = static_cast<double>(row[top]) - row[bottom];
      if (ends.square[k] >= 0.0 && range * range >= ends.square[k]) continue;
      ends.square[k] = range * range;
      ends.from_below[k] = low;
    }
  }
  return ends;
}

// Taking `to` values of a token instead of `from`, and what each of them is worth.
struct Offer {
  double gain;
  uint32_t token, to;
};

}  // namespace

void pick_value_outliers(const float* rows, uint32_t tokens, uint32_t head_dim, uint32_t budget, uint8_t* taken) {
  std::vector<TokenEnds> ends(tokens);
  std::vector<Offer> offers;
  std::vector<uint32_t> order, count(tokens, 0);
  for (uint32_t t = 0; t < tokens; ++t) {
    ends[t] = look_at(rows + static_cast<size_t>(t) * head_dim, head_dim, order);
    // Two far values close together are worth little one at a time: steps along the convex hull weigh them together.
    for (uint32_t at = 0; at < kMost;) {
      Offer best{-1.0, t, at};
      for (uint32_t to = at + 1; to <= kMost; ++to) {
        const double gain = (ends[t].square[at] - ends[t].square[to]) / (to - at);
        if (gain > best.gain) best = {gain, t, to};
      }
      offers.push_back(best);
      at = best.to;
    }
  }
  std::stable_sort(offers.begin(), offers.end(), [](const Offer& a, const Offer& b) { return a.gain > b.gain; });
  for (const Offer& offer : offers) {
    if (offer.to <= count[offer.token]) continue;
    const uint32_t step = std::min(budget, offer.to - count[offer.token]);
    count[offer.token] += step;
    budget -= step;
  }
  for (uint32_t t = 0; t < tokens; ++t) {
    uint8_t* row = taken + static_cast<size_t>(t) * head_dim;
    const uint32_t low = ends[t].from_below[count[t]];
    for (uint32_t i = 0; i < low; ++i) row[ends[t].lowest[i]] = 1;
    for (uint32_t i = 0; i < count[t] - low; ++i) row[ends[t].highest[i]] = 1;
  }
}

}  // namespace tierkv::calib
