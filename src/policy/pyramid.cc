#include "policy/pyramid.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace tierkv::policy {
namespace {

// Makes non-increasing whole numbers sum to `total`: what flooring lost goes to the first layers, what the floor of 1 added comes
// off the last of the largest. Both keep the order.
void settle(std::vector<uint64_t>& budgets, uint64_t total) {
  uint64_t sum = 0;
  for (uint64_t& b : budgets) sum += b = std::max<uint64_t>(b, 1);
  for (size_t i = 0; sum < total; i = (i + 1) % budgets.size(), ++sum) ++budgets[i];
  while (sum > total) {
    const auto end_of_largest = std::upper_bound(budgets.begin(), budgets.end(), budgets.front(), std::greater<>());
    --*(end_of_largest - 1);
    --sum;
  }
}

}  // namespace

uint32_t pyramidkv_budget(uint32_t layer, uint32_t num_layers, uint32_t budget, uint32_t window, double beta) {
  if (num_layers <= 1 || budget <= window) return budget;
  if (!(beta >= 1.0)) beta = 1.0;  // below 1 (or NaN) the last layer would outgrow the first
  const double spread = static_cast<double>(budget - window);
  const double smallest = spread / beta;
  const double largest = 2.0 * spread - smallest;
  std::vector<uint64_t> budgets(num_layers);
  for (uint32_t l = 0; l < num_layers; ++l) {
    const double share = largest - (largest - smallest) * l / (num_layers - 1);
    // The nudge keeps a share that is a whole number but for rounding from losing one.
    budgets[l] = window + static_cast<uint64_t>(std::floor(std::max(share, 0.0) + 1e-9));
  }
  settle(budgets, static_cast<uint64_t>(num_layers) * budget);
  return static_cast<uint32_t>(std::min<uint64_t>(budgets[std::min(layer, num_layers - 1)], 0xFFFFFFFFu));
}

uint32_t pyramid_linear_budget(uint32_t layer, uint32_t num_layers, uint32_t budget) {
  if (num_layers <= 1 || budget == 0) return budget;
  std::vector<uint64_t> budgets(num_layers);
  for (uint32_t l = 0; l < num_layers; ++l) budgets[l] = 2ull * budget * (num_layers - l) / (num_layers + 1ull);
  settle(budgets, static_cast<uint64_t>(num_layers) * budget);
  return static_cast<uint32_t>(std::min<uint64_t>(budgets[std::min(layer, num_layers - 1)], 0xFFFFFFFFu));
}

uint32_t pyramid_share_001(uint32_t layer, uint32_t num_layers, uint32_t max_seq_len) {
  if (num_layers == 0) return max_seq_len;
  const double weight = static_cast<double>(num_layers - std::min(layer, num_layers)) / num_layers;
  double sum = 0.0;
  for (uint32_t i = 1; i <= num_layers; ++i) sum += static_cast<double>(i) / num_layers;
  return std::max(1u, static_cast<uint32_t>(std::ceil(weight / sum * max_seq_len)));
}

}  // namespace tierkv::policy
