#include "cuda/plan/share_out.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

namespace tierkv::cuda {
namespace {

class Sharer {
 public:
  Sharer(std::span<const WorkRun> runs, const ShareInput& input) : runs_(runs), input_(input) {}

  const Sharing& make(Sharing& fresh) const {
    if (const Sharing* known = remembered()) return *known;
    share_out_anew(fresh);
    return input_.sharings ? *remember(std::move(fresh)) : fresh;
  }

 private:
  // Where piece i of `count` begins. Even, since a warp may take views in pairs.
  static uint64_t share(const WorkRun& run, uint64_t i, uint64_t count) {
    return i == count ? run.views : std::min<uint64_t>(run.views, (run.views * i / count + 1) / 2 * 2);
  }

  // Blocks that the warps of a fast thread block work on at a time (packed.cuh, klt.cuh).
  uint64_t round_views() const {
    switch (input_.fast) {
      case Path::packed44: return packed_blocks(4, 4, input_.head_dim);
      case Path::packed42: return packed_blocks(4, 2, input_.head_dim);
      case Path::klt:
      case Path::klt_whole:
      case Path::klt_better: return input_.group <= 4 ? 32 : 16;
      default: return 16;
    }
  }

  // A turn of the general path takes its time however few warps have work, a round of a fast one half of its time at least.
  uint64_t cost_of(const WorkRun& run, uint64_t views) const {
    if (run.path == Path::general) {
      const uint64_t cost = run.cost * views / run.views, turn = turn_cost(input_.chunk_rows);
      return (cost + turn - 1) / turn * turn;
    }
    const uint64_t round = round_views(), rest = views % round;
    return run.cost * (views - rest + (rest == 0 ? 0 : std::max(rest, round / 2))) / run.views;
  }

  static uint64_t segment_cost(const WorkRun& run) { return is_klt(run.path) ? kKltSegment : kSegment; }

  // Every run in equal pieces of at most about `most`, the largest first.
  std::vector<WorkPiece> pieces_of(uint64_t most) const {
    std::vector<WorkPiece> pieces;
    for (uint32_t r = 0; r < runs_.size(); ++r) {
      const WorkRun& run = runs_[r];
      if (beside_fast(run.path)) continue;
      const uint64_t room = std::max(most, 2 * segment_cost(run)) - segment_cost(run);
      // A little more than there is room for is not worth a segment of its own, nor is less than a turn of all warps.
      const uint64_t fitting = (run.cost + room - 1) / room, turns = (run.warps + kTurn / 2) / kTurn;
      const uint64_t count = std::clamp<uint64_t>(std::min(fitting, turns), 1, run.views);
      for (uint64_t i = 0; i < count; ++i) {
        const auto from = static_cast<uint32_t>(share(run, i, count)), to = static_cast<uint32_t>(share(run, i + 1, count));
        if (to > from) pieces.push_back({r, from, to - from, segment_cost(run) + cost_of(run, to - from)});
      }
    }
    std::stable_sort(pieces.begin(), pieces.end(), [](const WorkPiece& a, const WorkPiece& b) { return a.cost > b.cost; });
    return pieces;
  }

  using Bins = std::vector<std::vector<uint32_t>>;  // of a cta: indices of pieces

  // The largest piece to the cta that has least, of `count` that begin with number `first`. Returns what the fullest has.
  uint64_t pack(const std::vector<WorkPiece>& pieces, bool general, uint32_t first, uint32_t count, Bins* bins) const {
    using Load = std::pair<uint64_t, uint32_t>;
    std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
    for (uint32_t c = 0; c < count; ++c) loads.push({0, first + c});
    uint64_t fullest = 0;
    for (uint32_t i = 0; i < pieces.size(); ++i) {
      if ((runs_[pieces[i].run].path == Path::general) != general) continue;
      const Load least = loads.top();
      loads.pop();
      const uint64_t load = least.first + pieces[i].cost;
      fullest = std::max(fullest, load);
      loads.push({load, least.second});
      if (bins) (*bins)[least.second].push_back(i);
    }
    return fullest;
  }

  // So many of `ctas` for the pieces of the general path as leave the fullest one least: they are a kernel of their own.
  uint32_t share_ctas(const std::vector<WorkPiece>& pieces, uint32_t ctas, uint64_t& fullest) const {
    uint64_t costs[2] = {};
    uint32_t counts[2] = {};
    for (const WorkPiece& piece : pieces) {
      const bool general = runs_[piece.run].path == Path::general;
      costs[general] += piece.cost, ++counts[general];
    }
    if (counts[0] == 0 || counts[1] == 0) {
      const bool general = counts[1] != 0;
      fullest = pack(pieces, general, 0, ctas, nullptr);
      return general ? ctas : 0;
    }
    const uint32_t most = std::min(ctas - 1, counts[1]), fair = static_cast<uint32_t>(ctas * costs[1] / (costs[0] + costs[1]));
    const uint32_t first = std::clamp(fair, 3u, most + 2) - 2, last = std::clamp(fair + 4, first, most);
    uint32_t best = first;
    fullest = UINT64_MAX;
    for (uint32_t general = first; general <= last; ++general) {
      const uint64_t own = std::max(pack(pieces, true, 0, general, nullptr), pack(pieces, false, 0, ctas - general, nullptr));
      if (own < fullest) fullest = own, best = general;
    }
    return best;
  }

  const Sharing* remembered() const {
    if (!input_.sharings) return nullptr;
    Sharings& all = *input_.sharings;
    for (size_t i = 1; i <= all.kept.size(); ++i) {
      const size_t at = (all.last + i) % all.kept.size();
      const Sharing& kept = all.kept[at];
      if (kept.ctas == input_.ctas && kept.chunk_rows == input_.chunk_rows &&
          std::equal(kept.runs.begin(), kept.runs.end(), runs_.begin(), runs_.end(),
                     [](const WorkRun& a, const WorkRun& b) { return a.costs_as(b); })) {
        all.last = at;
        return &kept;
      }
    }
    return nullptr;
  }
  const Sharing* remember(Sharing sharing) const {
    Sharings& all = *input_.sharings;
    if (all.kept.size() < all.most) {
      all.kept.push_back(std::move(sharing));
      all.last = all.kept.size() - 1;
      return &all.kept.back();
    }
    all.last = std::exchange(all.next, (all.next + 1) % all.most);
    all.kept[all.last] = std::move(sharing);
    return &all.kept[all.last];
  }

  // Tries piece sizes around the mean and takes the one whose fullest cta has least: small pieces balance, large ones begin and end
  // less often.
  void share_out_anew(Sharing& out) const {
    const uint32_t ctas = input_.ctas;
    uint64_t total = 0;
    for (const WorkRun& run : runs_) total += beside_fast(run.path) ? 0 : run.cost + segment_cost(run);
    const uint64_t mean = total / ctas + 1;
    std::vector<WorkPiece> best, before;
    uint64_t least = UINT64_MAX;
    uint32_t general = 0;
    for (const uint64_t percent :
         {300, 250, 200, 180, 165, 150, 142, 135, 130, 125, 120, 115, 110, 106, 103, 100, 95, 90, 80, 70, 60, 50, 33, 25}) {
      std::vector<WorkPiece> pieces = pieces_of(mean * percent / 100);
      if (pieces == before) continue;
      before = pieces;
      uint64_t fullest = 0;
      const uint32_t share = share_ctas(pieces, ctas, fullest);
      if (fullest < least) least = fullest, best = std::move(pieces), general = share;
    }
    out.bins.resize(ctas);
    pack(best, true, 0, general, &out.bins);
    pack(best, false, general, ctas - general, &out.bins);
    out.runs.assign(runs_.begin(), runs_.end()), out.ctas = ctas, out.chunk_rows = input_.chunk_rows, out.pieces = std::move(best),
                                                 out.general = general;
  }

  std::span<const WorkRun> runs_;
  const ShareInput& input_;
};

// Staged runs in pieces of at most `most` tiles, or of one view.
std::vector<WorkPiece> pieces_of_tiles(std::span<const WorkRun> runs, const ViewDesc* views, uint64_t most) {
  std::vector<WorkPiece> pieces;
  for (uint32_t r = 0; r < runs.size(); ++r) {
    const WorkRun& run = runs[r];
    if (!by_tiles(run.path)) continue;
    const uint64_t count = (run.cost + most - 1) / most, fair = std::max((run.cost + count - 1) / count, kStagedPiece);
    for (uint32_t v = 0; v < run.views; ++v) {
      const uint64_t tiles = chunks_of(descs_of(run, views)[v], kStagedTile);
      const bool fits = v != 0 && pieces.back().cost + tiles <= fair;
      if (fits) ++pieces.back().views, pieces.back().cost += tiles;
      else pieces.push_back({r, v, 1, tiles});
    }
  }
  return pieces;
}

// Warm runs in pieces of `least` views, or of as many as all have room at once with.
void add_warm_pieces(std::span<const WorkRun> runs, uint64_t room, uint64_t least, std::vector<WorkPiece>& pieces) {
  uint64_t all = 0;
  for (const WorkRun& run : runs) all += run.path == Path::warm ? run.views : 0;
  const uint64_t most = std::max(least, (all + room - 1) / room);
  for (uint32_t r = 0; r < runs.size(); ++r) {
    if (runs[r].path != Path::warm) continue;
    const uint64_t views = runs[r].views, count = (views + most - 1) / most;
    for (uint64_t i = 0; i < count; ++i) {
      const auto from = static_cast<uint32_t>(views * i / count), to = static_cast<uint32_t>(views * (i + 1) / count);
      pieces.push_back({r, from, to - from, 0});
    }
  }
}

}  // namespace

const Sharing& share_out(std::span<const WorkRun> runs, const ShareInput& input, Sharing& fresh) {
  return Sharer(runs, input).make(fresh);
}

// They are not packed: a device gives its room to the next piece.
std::vector<WorkPiece> staged_pieces(std::span<const WorkRun> runs, const ViewDesc* views, uint64_t room, uint64_t least_warm) {
  uint64_t tiles = 0;
  for (const WorkRun& run : runs) tiles += by_tiles(run.path) ? run.cost : 0;
  uint64_t most = std::max(kStagedPiece, tiles / room);
  std::vector<WorkPiece> pieces = pieces_of_tiles(runs, views, most);
  while (pieces.size() > room && most < tiles) pieces = pieces_of_tiles(runs, views, most += 1 + most / 16);
  add_warm_pieces(runs, room, least_warm, pieces);
  return pieces;
}

}  // namespace tierkv::cuda
