#include "attn/mass.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tierkv::attn {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// What one query gave each row of one view, all heads of the group together. Heads by fours: the sums are read and written less.
void mass_of_query(const QueryTile& tile, uint32_t query, const float* weights, uint32_t stride, const float* tops,
                   const float* lse, uint32_t rows, float* mass) {
  std::fill_n(mass, rows, 0.0f);
  const uint32_t first = query * tile.group;
  for (uint32_t g = 0; g < tile.group; g += 4) {
    const uint32_t count = std::min(4u, tile.group - g);
    float share[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    const float* row[4];
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t at = first + g + std::min(i, count - 1);
      row[i] = weights + static_cast<size_t>(at) * stride;
      if (i < count && tops[at] != kNothing && lse[at] > kNothing) share[i] = std::exp(tops[at] - lse[at]);
    }
    for (uint32_t t = 0; t < rows; ++t) {
      mass[t] += (share[0] * row[0][t] + share[1] * row[1][t]) + (share[2] * row[2][t] + share[3] * row[3][t]);
    }
  }
}

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

void add_lanes(std::span<const BlockView> views, uint32_t weigh_from, const QueryTile& tile, const KeptWeights& kept,
               const float* lse, std::span<const MassLane> lanes, float* sums, size_t stride) {
  const uint32_t rows = tile.queries * tile.group;
  const float* weights = kept.weights.data();
  float mass[kMaxViewRows];
  uint32_t at = weigh_from;
  for (size_t k = 0; k < kept.views.size(); ++k) {
    for (; at < kept.views[k]; ++at) sums += views[at].rows;
    const BlockView& view = views[at];
    for (uint32_t q = 0; q < tile.queries; ++q) {
      const uint32_t query = tile.first + q;
      bool known = false;
      for (size_t l = 0; l < lanes.size(); ++l) {
        const float weight = lanes[l].weight ? lanes[l].weight[query] : 1.0f;
        if (weight == 0.0f) continue;
        if (!known) mass_of_query(tile, q, weights, row_stride(view), kept.tops.data() + k * rows, lse, view.rows, mass);
        known = true;
        float* lane = sums + l * stride;
        if (lanes[l].below) {
          count_low(view, tile.positions[q], lanes[l].below[query], weight, mass, lane);
        } else {
          for (uint32_t t = 0; t < view.rows; ++t) lane[t] += weight * mass[t];
        }
      }
    }
    weights += static_cast<size_t>(rows) * row_stride(view);
  }
}

}  // namespace tierkv::attn
