// mass.h — what rows receive from the queries of a call, as whoever keeps statistics of tokens wants it added up.
//
// A lane is one sum per row. Every statistic that the cache keeps is linear in what single queries give: a total weighs all
// queries alike, a window those that are in it, a fading score the newest most; a count counts queries instead of mass. So tiles of
// queries and runs of tokens can be worked on in any order, by any number of threads, and added up in the order of the queries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attn/attention.h"

namespace tierkv::attn {

struct MassLane {
  const float* weight = nullptr;  // of each query of the call; null: 1. A query of weight 0 is not looked at
  // Null: the lane adds weight·mass, the mass of all query heads of a KV head together. Else it adds the weight for each row at or
  // before the query's position to which the query gave less than below[query].
  const float* below = nullptr;

  bool plain() const { return !weight && !below; }
};

// The mass that the queries of a call give each row of a KV head's views from `from` on, in the order of views and rows.
struct HeadMass {
  uint32_t from = 0;
  float* sums = nullptr;                 // [lanes][rows of those views], added to; undefined when the work fails
  std::span<const MassLane> lanes = {};  // none: one plain lane
  size_t rows = 0;                       // of those views

  size_t num_lanes() const { return lanes.empty() ? 1 : lanes.size(); }
  // Whether any of queries first..end-1 counts in any lane.
  bool hears(uint32_t first, uint32_t end) const;
};

// Adds what the tile's queries gave the rows of views[weigh_from..], as the lanes want it: row i of them is sums[lane*stride + i].
// `kept` and `lse` are the tile's, as for add_mass() (attention.h), which is the same for one plain lane and faster.
void add_lanes(std::span<const BlockView> views, uint32_t weigh_from, const QueryTile& tile, const KeptWeights& kept,
               const float* lse, std::span<const MassLane> lanes, float* sums, size_t stride);

}  // namespace tierkv::attn
