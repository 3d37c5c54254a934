#include "attn/mass.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "quant/row_sums.h"

namespace tierkv::attn {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

float weight_of(const MassLane& lane, uint32_t query) { return lane.weight ? lane.weight[query] : 1.0f; }

// Dead rows are at no position a query could be. Without a branch in either loop: how much rows get is hard to guess.
void count_low(const BlockView& view, uint32_t at, float below, float weight, const float* mass, float* sums) {
  if (const uint32_t* positions = view.ctx.positions) {
    for (uint32_t t = 0; t < view.rows; ++t) sums[t] += positions[t] <= at && mass[t] < below ? weight : 0.0f;
    return;
  }
  const uint32_t first = view.ctx.first_position;
  const uint32_t seen = at < first ? 0 : std::min(view.rows, at - first + 1);
  for (uint32_t t = 0; t < seen; ++t) sums[t] += mass[t] < below ? weight : 0.0f;
}

}  // namespace

bool HeadMass::hears(uint32_t first, uint32_t end) const {
  if (lanes.empty()) return true;
  return std::any_of(lanes.begin(), lanes.end(), [&](const MassLane& lane) {
    return !lane.weight || std::any_of(lane.weight + first, lane.weight + end, [](float w) { return w != 0.0f; });
  });
}

void tops_to_shares(KeptWeights& kept, const float* lse, uint32_t rows) {
  const size_t n = kept.tops.size();
  for (size_t k = 0; k < n; k += rows) {
    for (uint32_t i = 0; i < rows; ++i) kept.tops[k + i] = lse[i] > kNothing ? kept.tops[k + i] - lse[i] : kNothing;
  }
  kept.tops.resize((n + 15) / 16 * 16, kNothing);
  // Of the kept unit, so that no row of weights needs to be divided by it.
  quant::exp_sum(kept.tops.data(), static_cast<uint32_t>(kept.tops.size()), 0.0f);
  for (float& share : kept.tops) share *= 1.0f / quant::kKeptUnit;
}

void sum_mass(std::span<const BlockView> views, uint32_t weigh_from, const QueryTile& tile, const KeptWeights& kept, bool add,
              float* sums) {
  const uint32_t rows = tile.queries * tile.group;
  const uint16_t* weights = kept.weights.data();
  size_t k = 0;
  for (uint32_t v = weigh_from; v < views.size(); sums += views[v++].rows) {
    if (k == kept.views.size() || v != kept.views[k]) {  // no query could see it
      if (!add) std::fill_n(sums, views[v].rows, 0.0f);
      continue;
    }
    const uint32_t stride = row_stride(views[v]);
    quant::sum_kept(weights, stride, kept.tops.data() + k++ * rows, rows, views[v].rows, add, sums);
    weights += static_cast<size_t>(rows) * stride;
  }
}

void add_query(const BlockView& view, uint32_t query, uint32_t position, const float* mass, std::span<const MassLane> lanes,
               float* sums, size_t stride) {
  for (size_t l = 0; l < lanes.size(); ++l) {
    const float weight = weight_of(lanes[l], query);
    if (weight == 0.0f) continue;
    float* lane = sums + l * stride;
    if (lanes[l].below) {
      count_low(view, position, lanes[l].below[query], weight, mass, lane);
    } else {
      for (uint32_t t = 0; t < view.rows; ++t) lane[t] += weight * mass[t];
    }
  }
}

void add_lanes(std::span<const BlockView> views, uint32_t weigh_from, const QueryTile& tile, const KeptWeights& kept,
               std::span<const MassLane> lanes, float* sums, size_t stride) {
  const uint32_t rows = tile.queries * tile.group;
  const uint16_t* weights = kept.weights.data();
  float mass[kMaxViewRows];  // what one query gave each row of one view, all heads of the group together
  uint32_t at = weigh_from;
  for (size_t k = 0; k < kept.views.size(); ++k) {
    for (; at < kept.views[k]; ++at) sums += views[at].rows;
    const BlockView& view = views[at];
    const uint32_t apart = row_stride(view);
    const float* share = kept.tops.data() + k * rows;
    for (uint32_t q = 0; q < tile.queries; ++q) {
      const uint32_t query = tile.first + q;
      if (std::all_of(lanes.begin(), lanes.end(), [&](const MassLane& lane) { return weight_of(lane, query) == 0.0f; })) continue;
      const size_t first = static_cast<size_t>(q) * tile.group;
      quant::sum_kept(weights + first * apart, apart, share + first, tile.group, view.rows, false, mass);
      add_query(view, query, tile.positions[q], mass, lanes, sums, stride);
    }
    weights += static_cast<size_t>(rows) * apart;
  }
}

}  // namespace tierkv::attn
