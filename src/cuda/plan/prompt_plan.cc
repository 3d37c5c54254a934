#include "cuda/plan/prompt_plan.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>

namespace tierkv::cuda {
namespace {

constexpr uint32_t kItemCost = 5;   // what an item takes beside its tiles, in tiles
constexpr uint32_t kLeastKeys = 4;  // tiles that are worth an item of their own
// And at most: tensor cores round their sums down, which shows in the end (5e-4 after 1,000 tiles of even weights).
constexpr uint32_t kMostKeys = 1100;

struct Range {
  uint32_t low = std::numeric_limits<uint32_t>::max(), high = 0;
  void add(uint32_t position) { low = std::min(low, position), high = std::max(high, position); }
  bool empty() const { return low > high; }
};

bool side_by_tile(const quant::SideLayout& side) {
  if (side.head_dim != kTileRows || side.tokens != kKeyTile) return false;
  if (side.kind == quant::LayoutKind::words) {
    if (side.components > kTileRows || side.pairs != kTileRows / 2) return false;
    for (uint32_t p = 0; p < side.pairs; ++p) {  // one lane has both of a pair where they lie half a head apart
      if (side.turned[2 * p] != p || side.turned[2 * p + 1] != p + side.pairs) return false;
    }
    return true;
  }
  const quant::LayoutPlane& plane = side.planes[0];
  return side.kind == quant::LayoutKind::packed && side.groups == 1 && side.planes[1].bits == 0 && plane.shift == 0 &&
         plane.bits >= 2 && plane.bits != 3 && plane.offset % 8 == 0 && !side.has_levels && !side.even && side.mean_at == 0 &&
         !(side.hadamard && side.by_channel);
}

class Planner {
 public:
  explicit Planner(const PromptPlanInput& input) : input_(input) {
    for (const CodecDesc& codec : input.codecs) by_tile_.push_back(unpacks_by_tile(codec));
  }

  PromptPlan make() {
    choose_frame();
    for (uint32_t t = 0; t < input_.tasks.size(); ++t) {
      add_queries(t);
      for (uint32_t h = 0; h < input_.tasks[t].heads.size(); ++h) add_head(t, h);
    }
    end_round();
    for (size_t t = 0; t < plan_.tiles.size(); ++t) {
      plan_.tiles[t].first_slot = static_cast<uint32_t>(plan_.slots.size());
      plan_.tiles[t].slots = static_cast<uint32_t>(slots_[t].size());
      plan_.slots.insert(plan_.slots.end(), slots_[t].begin(), slots_[t].end());
    }
    return std::move(plan_);
  }

 private:
  // Key tiles that one KV head has in this round, and its query tiles.
  struct Piece {
    uint32_t first_tile, tiles;  // of queries
    uint32_t first_key, keys;    // of scratch
    Range queries;               // positions of all of the sequence's
  };
  struct Run {
    uint32_t tile, first_key, keys;
  };

  bool could_see(const Range& queries, const Range& keys) const {
    if (keys.empty() || (input_.params.causal && keys.low > queries.high)) return false;
    return input_.params.window == 0 || static_cast<uint64_t>(keys.high) + input_.params.window > queries.low;
  }

  bool rotated(uint32_t codec) const { return codec < input_.codecs.size() && input_.codecs[codec].value.hadamard != 0; }

  // The one for which fewer rows have to be turned.
  void choose_frame() {
    uint64_t leave = 0, enter = 0;
    for (const PromptTask& task : input_.tasks) {
      for (const PromptHead& head : task.heads) {
        for (size_t v = 0; v < head.views.size(); ++v) {
          (rotated(head.placed[v].codec) ? leave : enter) += head.views[v].rows;
        }
        enter += task.positions.size() * input_.group;  // and results leave it
      }
    }
    plan_.value_frame = leave > enter;
  }

  void add_queries(uint32_t t) {
    const PromptTask& task = input_.tasks[t];
    plan_.first_positions.push_back(static_cast<uint32_t>(plan_.query_positions.size()));
    plan_.query_positions.insert(plan_.query_positions.end(), task.positions.begin(), task.positions.end());
    all_ = Range();
    for (const uint32_t position : task.positions) all_.add(position);
    first_tile_ = static_cast<uint32_t>(plan_.tiles.size());
    const uint32_t rows = static_cast<uint32_t>(task.positions.size()) * input_.group;
    for (uint32_t h = 0; h < task.heads.size(); ++h) {
      for (uint32_t first = 0; first < rows; first += kQueryTile) {
        QueryTileDesc& tile = plan_.tiles.emplace_back();
        tile.rows_of = t, tile.first_head = h * input_.group, tile.first = first, tile.rows = std::min(kQueryTile, rows - first);
        Range seen;
        for (uint32_t q = first / input_.group; q <= (first + tile.rows - 1) / input_.group; ++q) seen.add(task.positions[q]);
        tile.low = seen.low, tile.high = seen.high;
      }
    }
    slots_.resize(plan_.tiles.size());
  }

  void add_head(uint32_t t, uint32_t head) {
    const PromptTask& task = input_.tasks[t];
    const PromptHead& list = task.heads[head];
    const uint32_t room = input_.scratch_tiles * kKeyTile;
    uint64_t rows = 0;
    seen_.clear();
    for (uint32_t v = 0; v < list.views.size(); ++v) {
      if (!could_see(all_, range_of(list.views[v]))) continue;
      seen_.push_back(v);
      rows = (rows + align_of(list.views[v].rows) - 1) / align_of(list.views[v].rows) * align_of(list.views[v].rows);
      rows += filled(list.views[v].rows);
    }
    if (row_ + rows > room) end_round();
    // Equal parts; a view more than that still fits.
    const uint64_t parts = (rows + room - 1) / room;
    const uint64_t most = parts <= 1 ? room : std::min<uint64_t>(room, (rows + parts - 1) / parts + attn::kMaxViewRows);
    const uint32_t tiles = static_cast<uint32_t>(task.positions.size() * input_.group + kQueryTile - 1) / kQueryTile;
    piece_ = {first_tile_ + head * tiles, tiles, row_ / kKeyTile, 0, all_};
    for (const uint32_t v : seen_) {
      if (rounded(row_, align_of(list.views[v].rows)) + filled(list.views[v].rows) > most) {
        end_piece();
        end_round();
        piece_.first_key = 0;
      }
      add_view(list.views[v], list.placed[v], task.work);
    }
    end_piece();
  }

  static Range range_of(const attn::BlockView& view) {
    Range range;
    if (!view.ctx.positions && view.rows != 0) {
      range.add(view.ctx.first_position), range.add(view.ctx.first_position + view.rows - 1);
    }
    for (uint32_t row = 0; view.ctx.positions && row < view.rows; ++row) {
      if (view.ctx.positions[row] != attn::kDeadPosition) range.add(view.ctx.positions[row]);
    }
    return range;
  }

  static uint32_t filled(uint32_t rows) { return (rows + kUnpackRows - 1) / kUnpackRows * kUnpackRows; }

  // Long views begin where a tile does, or half of one: that is how they are unpacked fastest.
  static uint32_t align_of(uint32_t rows) {
    return rows >= kKeyTile ? kKeyTile : rows >= kKeyTile / 2 ? kKeyTile / 2 : kUnpackRows;
  }
  // As far as `row` is aligned for the next view, zeros follow the last one.
  void fill_to(uint32_t row) {
    if (row == row_) return;
    plan_.views.back().filled = static_cast<uint16_t>(plan_.views.back().filled + row - row_);
    plan_.key_tiles.back().whole = 0;
    row_ = row;
  }
  static uint32_t rounded(uint32_t row, uint32_t to) { return (row + to - 1) / to * to; }

  void add_view(const attn::BlockView& view, const Placed& placed, uint32_t work) {
    fill_to(rounded(row_, align_of(view.rows)));
    PromptView& desc = plan_.views.emplace_back();
    desc.keys = placed.keys, desc.values = placed.values, desc.codec = placed.codec;
    desc.first_position = view.ctx.first_position;
    desc.to = row_, desc.work = work;
    desc.rows = static_cast<uint16_t>(view.rows), desc.filled = static_cast<uint16_t>(filled(view.rows));
    if (view.ctx.positions) {
      desc.positions = static_cast<uint32_t>(plan_.positions.size());
      plan_.positions.insert(plan_.positions.end(), view.ctx.positions, view.ctx.positions + view.rows);
    }
    const uint32_t base = first_key_tile_;
    plan_.key_tiles.resize(base + (row_ + desc.filled + kKeyTile - 1) / kKeyTile);
    // Tile by tile, as far as rows are consecutive; row by row where each has a position of its own.
    for (uint32_t row = 0; row < desc.filled;) {
      KeyTileDesc& tile = plan_.key_tiles[base + (row_ + row) / kKeyTile];
      const uint32_t end = std::min<uint32_t>(desc.filled, row + kKeyTile - (row_ + row) % kKeyTile);
      if (end > view.rows) tile.whole = 0;
      if (!view.ctx.positions && row < view.rows) {
        tile.low = std::min(tile.low, view.ctx.first_position + row);
        tile.high = std::max(tile.high, view.ctx.first_position + std::min(end, view.rows) - 1);
      }
      for (uint32_t r = row; view.ctx.positions && r < std::min(end, view.rows); ++r) {
        const uint32_t position = view.ctx.positions[r];
        if (position == attn::kDeadPosition) tile.whole = 0;
        else tile.low = std::min(tile.low, position), tile.high = std::max(tile.high, position);
      }
      row = end;
    }
    row_ += desc.filled;
  }

  // What is left of the last tile belongs to its last view, as zeros.
  void end_piece() {
    fill_to(rounded(row_, kKeyTile));
    piece_.keys = row_ / kKeyTile - piece_.first_key;
    if (piece_.keys != 0) pieces_.push_back(piece_);
  }

  void end_round() {
    if (row_ == 0) return;
    PromptRound& round = plan_.rounds.emplace_back();
    round.first_view = first_view_, round.views = static_cast<uint32_t>(plan_.views.size()) - first_view_;
    const auto views = plan_.views.begin() + first_view_;
    round.tile_views = static_cast<uint32_t>(std::stable_partition(views, plan_.views.end(),
                                                                   [&](const PromptView& view) {
                                                                     return view.codec < by_tile_.size() && by_tile_[view.codec] &&
                                                                            (rotated(view.codec) || !plan_.value_frame) &&
                                                                            view.rows == kKeyTile && view.filled == kKeyTile &&
                                                                            view.positions == kNoPositions;
                                                                   }) -
                                             views);
    round.first_key_tile = first_key_tile_, round.key_tiles = row_ / kKeyTile;
    plan_.most_key_tiles = std::max(plan_.most_key_tiles, round.key_tiles);
    round.first_item = static_cast<uint32_t>(plan_.items.size());
    add_items();
    round.items = static_cast<uint32_t>(plan_.items.size()) - round.first_item;
    first_view_ += round.views;
    first_key_tile_ = static_cast<uint32_t>(plan_.key_tiles.size());
    pieces_.clear();
    row_ = 0;
  }

  // From the first to the last key tile that a query tile could see.
  std::vector<Run> runs() const {
    std::vector<Run> out;
    for (const Piece& piece : pieces_) {
      for (uint32_t t = piece.first_tile; t < piece.first_tile + piece.tiles; ++t) {
        const Range queries{plan_.tiles[t].low, plan_.tiles[t].high};
        const auto sees = [&](uint32_t key) {
          const KeyTileDesc& tile = plan_.key_tiles[first_key_tile_ + key];
          return could_see(queries, {tile.low, tile.high});
        };
        uint32_t begin = piece.first_key, end = piece.first_key + piece.keys;
        while (begin < end && !sees(begin)) ++begin;
        while (begin < end && !sees(end - 1)) --end;
        if (begin < end) out.push_back({t, begin, end - begin});
      }
    }
    return out;
  }

  // Of a run, for one thread block: `part` of the run's.
  struct Part {
    uint32_t run, part, first, keys;
  };

  // Runs in parts of at most `most` tiles; `off` tiles of each become a part of their own, for thread blocks that would be idle.
  // The longest come first.
  static std::vector<Part> parts_of(const std::vector<Run>& runs, uint32_t most, uint32_t off) {
    std::vector<Part> out;
    for (uint32_t r = 0; r < runs.size(); ++r) {
      const uint32_t less = off != 0 && runs[r].keys > 4 * off ? off : 0, keys = runs[r].keys - less;
      const uint32_t parts = (keys + most - 1) / most;
      for (uint32_t p = 0; p < parts; ++p) out.push_back({r, p, keys * p / parts, keys * (p + 1) / parts - keys * p / parts});
      if (less != 0) out.push_back({r, parts, keys, less});
    }
    std::stable_sort(out.begin(), out.end(), [](const Part& a, const Part& b) { return a.keys > b.keys; });
    return out;
  }

  // How long a round takes: thread blocks take what is next.
  uint64_t makespan(const std::vector<Part>& parts) const {
    std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> busy;
    for (uint32_t i = 0; i < input_.multiprocessors; ++i) busy.push(0);
    uint64_t last = 0;
    for (const Part& part : parts) {
      const uint64_t end = busy.top() + kItemCost + part.keys;
      busy.pop(), busy.push(end);
      last = std::max(last, end);
    }
    return last;
  }

  std::vector<Part> best_parts(const std::vector<Run>& runs) const {
    uint32_t longest = 1;
    for (const Run& run : runs) longest = std::max(longest, run.keys);
    std::vector<Part> best;
    uint64_t takes = std::numeric_limits<uint64_t>::max();
    const auto offer = [&](uint32_t most, uint32_t off) {
      std::vector<Part> parts = parts_of(runs, most, off);
      if (const uint64_t t = makespan(parts); t < takes) takes = t, best = std::move(parts);
    };
    for (const uint32_t cuts : {1u, 2u, 3u, 4u, 6u, 8u, 12u, 16u, 24u, 32u, 48u, 64u}) {
      const uint32_t most = std::min(kMostKeys, (longest + cuts - 1) / cuts);
      const uint64_t items = runs.size() * cuts, waves = (items + input_.multiprocessors - 1) / input_.multiprocessors;
      if (cuts > 1 && (most < kLeastKeys || items > 16ull * input_.multiprocessors)) break;
      offer(most, 0);
      // What idle thread blocks of the last wave could take off all others: as much as leaves each of them as long as these.
      const uint64_t idle = waves * input_.multiprocessors - items;
      if (cuts != 1 || idle == 0 || waves > 4) continue;
      const uint64_t each = (items + idle - 1) / idle;
      const uint64_t off = longest > each * kItemCost ? (longest - each * kItemCost) / (each + 1) : 0;
      if (off >= kLeastKeys && longest <= kMostKeys) offer(longest - static_cast<uint32_t>(off), static_cast<uint32_t>(off));
    }
    return best;
  }

  // Of each key tile of the round: how many there are from it on for which no query of its sequence needs a mask.
  void find_settled() {
    settled_.assign(row_ / kKeyTile, 0);
    for (const Piece& piece : pieces_) {
      QueryTileDesc all;
      all.low = piece.queries.low, all.high = piece.queries.high;
      uint32_t n = 0;
      for (uint32_t k = piece.first_key + piece.keys; k-- > piece.first_key;) settled_[k] = n = masks(all, k) ? 0 : n + 1;
    }
  }
  bool masks(const QueryTileDesc& tile, uint32_t key) const {
    return needs_mask(input_.params.causal, input_.params.window, tile, plan_.key_tiles[first_key_tile_ + key]);
  }
  // Behind a tile that all rows see as a whole too: a few rows say too little of how large scores are.
  void find_plain(PromptItem& item) const {
    constexpr uint32_t kMostBefore = 16;  // a window or the sequence begins inside of a few tiles
    const QueryTileDesc& tile = plan_.tiles[item.tile];
    for (; item.first_plain < std::min(item.keys, kMostBefore); item.first_plain += 2) {
      const uint32_t most = item.keys - item.first_plain, first = item.first_key + item.first_plain;
      if (masks(tile, first - 1)) continue;
      uint32_t n = std::min(settled_[first], most);
      while (n < most && !masks(tile, first + n)) ++n;
      item.plain = n / 2 * 2;
      if (item.plain != 0) return;
    }
  }

  void add_items() {
    const std::vector<Run> all = runs();
    find_settled();
    for (const Part& part : best_parts(all)) {
      const Run& run = all[part.run];
      std::vector<uint32_t>& slots = slots_[run.tile];
      const bool continues = part.part < slots.size() && begun_[slots[part.part]];
      while (part.part >= slots.size()) slots.push_back(plan_.slot_count++);
      begun_.resize(plan_.slot_count);
      begun_[slots[part.part]] = true;
      plan_.items.push_back({run.tile, run.first_key + part.first, part.keys, 1, 0, slots[part.part], continues});
      find_plain(plan_.items.back());
    }
  }

  const PromptPlanInput& input_;
  std::vector<bool> by_tile_;  // of each codec
  PromptPlan plan_;
  std::vector<std::vector<uint32_t>> slots_;  // of each query tile
  std::vector<bool> begun_;                   // of each slot: it has a state
  // Of the task at hand.
  Range all_;
  uint32_t first_tile_ = 0;
  std::vector<uint32_t> seen_;  // views of the head at hand that queries see
  // Of the round at hand.
  std::vector<Piece> pieces_;
  Piece piece_{};
  std::vector<uint32_t> settled_;
  uint32_t row_ = 0, first_view_ = 0, first_key_tile_ = 0;
};

}  // namespace

bool unpacks_by_tile(const CodecDesc& codec) { return side_by_tile(codec.key) && side_by_tile(codec.value); }

PromptPlan make_prompt_plan(const PromptPlanInput& input) { return Planner(input).make(); }

}  // namespace tierkv::cuda
