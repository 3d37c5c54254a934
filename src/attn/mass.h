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
  float* sums = nullptr;                 // [lanes][rows of those views], written; undefined when the work fails
  std::span<const MassLane> lanes = {};  // none: one plain lane
  size_t rows = 0;                       // of those views

  size_t num_lanes() const { return lanes.empty() ? 1 : lanes.size(); }
  // Whether any of queries first..end-1 counts in any lane.
  bool hears(uint32_t first, uint32_t end) const;
};

// What makes mass of kept weights, a factor for each view and row of the tile: the tops of the weights become it, once. `lse`: of
// the tile's rows, as attend() or merge() over all views of the head wrote it, or of a softmax of which these views are a part; a
// row that overflowed has no share.
void tops_to_shares(KeptWeights& kept, const float* lse, uint32_t rows);

// What all queries of the tile gave each row of views[weigh_from..]: sums has one float a row of them, in order, which gets it, or
// with `add` also keeps what it had. `kept`: the tile's, with shares.
void sum_mass(std::span<const BlockView> views, uint32_t weigh_from, const QueryTile& tile, const KeptWeights& kept, bool add,
              float* sums);

// Adds what query `query`, at `position`, gave each row of a view, all heads of the group together, as the lanes want it: row i is
// sums[lane*stride + i].
void add_query(const BlockView& view, uint32_t query, uint32_t position, const float* mass, std::span<const MassLane> lanes,
               float* sums, size_t stride);

// sum_mass() as the lanes want it, always added: row i is sums[lane*stride + i].
void add_lanes(std::span<const BlockView> views, uint32_t weigh_from, const QueryTile& tile, const KeptWeights& kept,
               std::span<const MassLane> lanes, float* sums, size_t stride);

}  // namespace tierkv::attn
