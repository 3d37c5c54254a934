// share_out.h — runs of views among the thread blocks of a launch: pieces of about equal cost, so that a ragged batch keeps every
// multiprocessor of a device about as busy as an even one. Host code, no device needed.
//
// Runs:     views of one task that are read in one way, neighbours in the reader's list (plan.h). A piece is a part of one.
// General and fast runs are cut and packed into a given number of thread blocks, `general` of them for the general path, which is a
// kernel of its own. Staged and warm runs are cut into one small piece for each thread block, and not packed.
// Errors:   none. Throws std::bad_alloc.
#pragma once

#include <span>
#include <vector>

#include "cuda/plan/paths.h"

namespace tierkv::cuda {

// Costs in bytes that a multiprocessor of an H200 reads in the same time, about 30,000 a microsecond: of a turn of all warps of a
// thread block through the general path, for the query and for every 16 rows, and of a segment's begin and end. klt's bytes take
// twice the time, and its segments bring a basis along.
inline constexpr uint64_t kGeneralQuery = 600000, kGeneralTile = 350000, kSegment = 150000, kKltSegment = 270000, kKltFactor = 2;
inline constexpr uint32_t kTurn = 16;

// Staged views are counted in tiles of 16 rows: a thread block takes as many at once, and a piece may have a few more that are not
// worth a thread block of their own.
inline constexpr uint64_t kStagedTile = 16, kStagedOnce = kStagedRows / kStagedTile, kStagedPiece = kStagedOnce + 1;

// Of a turn of all warps through the general path.
inline uint64_t turn_cost(uint32_t chunk_rows) { return kGeneralQuery + kGeneralTile * chunk_rows / 16; }

// Pieces of a view that warps of the general path take.
inline uint64_t chunks_of(const ViewDesc& view, uint32_t chunk_rows) {
  return (view.end + chunk_rows - 1) / chunk_rows - view.begin / chunk_rows;
}

// How runs of views were shared out among thread blocks. It depends on the runs alone, and those of all layers of a model, and of
// many steps in a row, are alike: the last few are remembered, and compared in full before they are used.
struct WorkRun {
  uint32_t task = 0;
  Path path = Path::general;
  uint32_t codec = 0, first = 0, views = 0;
  uint64_t warps = 0;               // that its views keep busy once: one a view of a fast path, one a piece of the general one
  uint64_t cost = 0;                // of a staged or a warm run: tiles of 16 rows
  const ViewDesc* descs = nullptr;  // of a settled run, for the host; null: they are in the plan's own list
  // Staged and warm runs are not shared out.
  bool costs_as(const WorkRun& o) const {
    return path == o.path && (beside_fast(path) || (views == o.views && warps == o.warps && cost == o.cost));
  }
};
struct WorkPiece {
  uint32_t run, first, views;  // `first` of the run's
  uint64_t cost;
  bool operator==(const WorkPiece&) const = default;
};
struct Sharing {
  std::vector<WorkRun> runs;
  uint32_t ctas = 0, chunk_rows = 0;
  uint32_t general = 0;  // thread blocks that are general
  std::vector<WorkPiece> pieces;
  std::vector<std::vector<uint32_t>> bins;  // of a cta: indices of pieces
};
struct Sharings {
  // With tables blocks of every head have sizes of their own, and every layer of a model is shared out otherwise.
  size_t most = 128;
  std::vector<Sharing> kept;
  size_t next = 0;  // to be replaced
  size_t last = 0;  // that was used: layers come in turn, and the next one's lies behind it
};

// What sharing out knows of a launch beside its runs.
struct ShareInput {
  uint32_t ctas = 2;  // REQUIRES: two at least
  uint32_t chunk_rows = 64;
  Path fast = Path::general;
  uint32_t group = 1, head_dim = 128;
  Sharings* sharings = nullptr;  // or null: nothing is remembered
};

// The sharing of these runs: a remembered one, or a new one, which lies in `fresh` when it is not remembered.
const Sharing& share_out(std::span<const WorkRun> runs, const ShareInput& input, Sharing& fresh);

// Pieces of the staged, the plain and the warm runs, as small as `room` thread blocks take at once, but of `least_warm` warm
// blocks. `views`: the plan's own list.
std::vector<WorkPiece> staged_pieces(std::span<const WorkRun> runs, const ViewDesc* views, uint64_t room, uint64_t least_warm);

// A run's views for the host. A settled run may seem to begin among the plan's own views: until the list's front has grown for
// them.
inline const ViewDesc* descs_of(const WorkRun& run, const ViewDesc* views) { return run.descs ? run.descs : views + run.first; }

}  // namespace tierkv::cuda
