#include "cuda/plan.h"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <utility>

#include "cuda/better.h"
#include "cuda/fast_codec.h"
#include "cuda/reading.h"
#include "cuda/tile_map.h"

namespace tierkv::cuda {
namespace {

using quant::LayoutKind;
using quant::MetaKind;
using quant::SideLayout;

// Costs in bytes that a multiprocessor of an H200 reads in the same time, about 30,000 a microsecond: of a turn of all warps of a
// thread block through the general path, for the query and for every 16 rows, and of a segment's begin and end. klt's bytes take
// twice the time, and its segments bring a basis along.
constexpr uint64_t kGeneralQuery = 600000, kGeneralTile = 350000, kSegment = 150000, kKltSegment = 270000, kKltFactor = 2;
constexpr uint32_t kTurn = 16;

// Staged views are counted in tiles of 16 rows: a thread block takes as many at once, and a piece may have a few more that are not
// worth a thread block of their own.
constexpr uint64_t kStagedTile = 16, kStagedOnce = kStagedRows / kStagedTile, kStagedPiece = kStagedOnce + 1;

// So few settled views without a fast path are better listed again than a segment of their own.
constexpr uint32_t kFewSettled = 32;

// Values of one scale a token that the tensor-core paths unpack.
bool fast_values(const SideLayout& value, uint32_t tokens) {
  return value.kind == LayoutKind::packed && !value.by_channel && value.groups == 1 && !value.has_levels && value.mean_at == 0 &&
         value.tokens == tokens && value.head_dim == kTileRows && value.bits >= 2 && value.bits <= 4 &&
         (value.meta == MetaKind::f16_pair || value.meta == MetaKind::log8_scale || value.meta == MetaKind::log8_pair ||
          value.meta == MetaKind::log4_pair);
}

bool is_klt(Path path) { return path == Path::klt || path == Path::klt_better; }

// Pair p of a rope is (p, p + pairs) and every channel turns: what the tensor-core path of klt has its query turned by.
bool turns_halves(const SideLayout& key) {
  if (key.pairs * 2 != key.head_dim) return false;
  for (uint32_t p = 0; p < key.pairs; ++p) {
    if (key.turned[2 * p] != p || key.turned[2 * p + 1] != p + key.pairs) return false;
  }
  return true;
}

// Rows that a query at `position` may see, as the processor has it (attention.cc).
bool sees(const attn::AttendParams& params, uint64_t position, uint64_t key) {
  return key != attn::kDeadPosition && !(params.causal && key > position) && !(params.window && key + params.window <= position);
}

class Planner {
 public:
  explicit Planner(const PlanInput& input) : input_(input) {}

  Plan make() {
    choose_path();
    count_rest();
    size_t total = 0;
    for (const PlanTask& task : input_.tasks) total += task.views.size();
    plan_.views.reserve(total);
    for (uint32_t t = 0; t < input_.tasks.size(); ++t) add_task(t);
    round_up_turns();
    share_out();
    return std::move(plan_);
  }

 private:
  // Views of one task that are read in one way: neighbours in the reader's list. A piece is a part of one.
  using Run = WorkRun;
  using Piece = WorkPiece;

  void choose_path() {
    paths_.resize(input_.codecs.size(), Path::general);
    warm_.resize(input_.codecs.size());
    if (!input_.tensor_cores || input_.params.softcap > 0.0f) return;
    for (size_t c = 0; c < input_.codecs.size(); ++c) warm_[c] = takes_warm(input_.codecs[c], input_.group);
    std::vector<uint64_t> bytes(input_.codecs.size());
    for (const PlanTask& task : input_.tasks) {
      for (size_t v = 0; v < task.views.size(); ++v) {
        if (task.views[v].rows == kTileRows) bytes[task.placed[v].codec] += kTileRows;
      }
      for (const SettledRun& run : task.settled) {
        if (run.path > Path::staged) bytes[run.codec] += uint64_t{kTileRows} * run.views;
      }
    }
    std::array<uint64_t, kPathCount> by_path{};
    for (size_t c = 0; c < input_.codecs.size(); ++c) {
      paths_[c] = ready_path(input_.codecs[c], input_.group);
      by_path[static_cast<size_t>(paths_[c])] += bytes[c] * (input_.codecs[c].key.bytes + input_.codecs[c].value.bytes);
    }
    by_path[0] = 0;
    plan_.fast = static_cast<Path>(std::max_element(by_path.begin(), by_path.end()) - by_path.begin());
    for (Path& path : paths_) {
      if (path != plan_.fast) path = Path::general;
    }
  }

  // A warp takes the fewer rows of the general path at a time the less of it there is: one after the other rows wait for memory,
  // and what a warp does before its first row is as much as two tiles. Views of the staged path are cut where there are thread
  // blocks enough for all parts.
  void count_rest() {
    uint64_t tiles = 0, staged = 0;
    for (const PlanTask& task : input_.tasks) {
      for (size_t v = 0; v < task.views.size(); ++v) {
        const uint32_t rows = task.views[v].rows, codec = task.placed[v].codec;
        if (rows == kTileRows && paths_[codec] != Path::general) continue;
        if (rows == kWarmTokens && warm_[codec]) continue;
        (staged_frame(input_.codecs[codec]) ? staged : tiles) += (rows + 15) / 16;
      }
      for (const SettledRun& run : task.settled) {
        if (is_fast(run) || is_warm(run)) continue;
        (frame_of(run) ? staged : tiles) += run.chunks[0];
      }
    }
    const uint64_t warps = uint64_t{kTurn} * std::max(1u, input_.ctas);
    plan_.chunk_rows = tiles <= warps / 4 ? 16 : tiles <= 2 * warps ? 32 : 64;
    cut_views_ = staged <= kStagedOnce * staged_room();
  }
  // Thread blocks of the staged path that a device has room for at once.
  uint64_t staged_room() const {
    return uint64_t{std::max(1u, input_.ctas)} * (input_.params.head_dim > 128 ? kStagedWideRoom : kStagedRoom);
  }
  // Of a settled run without the launch's fast path, as of its codec.
  std::optional<Frame> frame_of(const SettledRun& run) const {
    return run.path == Path::general ? std::nullopt : staged_frame(input_.codecs[run.codec]);
  }
  uint64_t turn_cost() const { return kGeneralQuery + kGeneralTile * plan_.chunk_rows / 16; }

  bool is_fast(const SettledRun& run) const {
    return run.path > Path::staged && plan_.fast != Path::general && paths_[run.codec] == plan_.fast;
  }

  // The order of views does not matter to a softmax: those of the general path come first, then the staged ones by the frame of
  // their values, then the fast ones codec by codec.
  void add_task(uint32_t index) {
    const PlanTask& task = input_.tasks[index];
    plan_.tasks.push_back({task.first_row, task.first_head, 0, 0});
    fast_.clear(), staged_[0].clear(), staged_[1].clear();
    begin_run(index, Path::general);
    for (const SettledRun& run : task.settled) {
      if (!is_fast(run) && run.views <= kFewSettled) list_again(run);
    }
    for (size_t v = 0; v < task.views.size(); ++v) add_view(task, task.views[v], task.placed[v]);
    for (const auto& views : staged_) add_staged(index, views);
    std::stable_sort(fast_.begin(), fast_.end(), [](const ViewDesc& a, const ViewDesc& b) { return a.codec < b.codec; });
    for (size_t i = 0; i < fast_.size(); ++i) {
      if (i == 0 || fast_[i].codec != fast_[i - 1].codec) begin_run(index, plan_.fast);
      add_to_run(fast_[i], 1, fast_cost(fast_[i].codec));
    }
    if (runs_.back().views == 0) runs_.pop_back();
    for (const SettledRun& run : task.settled) {
      if (is_fast(run) || run.views > kFewSettled) add_settled(index, run);
    }
  }

  void list_again(const SettledRun& run) {
    plan_.bytes += run.bytes;
    const std::optional<Frame> frame = frame_of(run);
    for (uint32_t v = 0; v < run.views; ++v) {
      if (frame) staged_[static_cast<size_t>(*frame)].push_back(run.descs[v]);
      else add_general(run.descs[v]);
    }
  }

  void add_settled(uint32_t index, const SettledRun& run) {
    plan_.bytes += run.bytes;
    const uint32_t first = input_.settled_base + run.first;
    const uint64_t chunks = run.chunks[plan_.chunk_rows == 16 ? 0 : plan_.chunk_rows == 32 ? 1 : 2];
    if (is_fast(run)) {
      runs_.push_back({index, plan_.fast, run.codec, first, run.views, run.views, run.views * fast_cost(run.codec), run.descs});
    } else if (is_warm(run)) {
      runs_.push_back({index, Path::warm, run.codec, first, run.views, 0, run.chunks[0], run.descs});
    } else if (frame_of(run)) {
      runs_.push_back({index, Path::staged, run.codec, first, run.views, 0, run.chunks[0], run.descs});
    } else {
      runs_.push_back({index, Path::general, run.codec, first, run.views, chunks, chunks * turn_cost() / kTurn, run.descs});
    }
  }

  // Rows of 16-bit floats are read alike whatever a block's length: as one codec's, they need nothing made ready in between.
  uint32_t read_as(uint32_t codec) {
    if (read_as_.empty()) {
      for (uint32_t c = 0; c < input_.codecs.size(); ++c) {
        uint32_t first = 0;
        while (first < c && !alike(input_.codecs[first], input_.codecs[c])) ++first;
        read_as_.push_back(first);
      }
    }
    return read_as_[codec];
  }
  static bool alike(const CodecDesc& a, const CodecDesc& b) {
    const auto plain = [](const SideLayout& x, const SideLayout& y) {
      return x.kind == LayoutKind::rows16 && y.kind == LayoutKind::rows16 && x.bf16 == y.bf16 && x.head_dim == y.head_dim;
    };
    return plain(a.key, b.key) && plain(a.value, b.value);
  }

  // Whole blocks that the warm path takes, codec by codec; then the others.
  void add_staged(uint32_t index, const std::vector<ViewDesc>& views) {
    uint32_t codec = UINT32_MAX;
    for (const ViewDesc& view : views) {
      if (!is_warm(view)) continue;
      if (std::exchange(codec, view.codec) != view.codec) begin_run(index, Path::warm);
      add_to_run(view, 0, chunks_of(view, kStagedTile));
    }
    begin_run(index, Path::staged);
    for (const ViewDesc& view : views) {
      if (!is_warm(view)) add_staged(view);
    }
  }
  bool is_warm(const SettledRun& run) const { return run.path == Path::warm && warm_[run.codec]; }
  bool is_warm(const ViewDesc& view) const {
    return warm_[view.codec] && view.begin == 0 && view.end == kWarmTokens && view.mask == kNoMask && aligned(view);
  }
  static bool aligned(const ViewDesc& view) {
    return (reinterpret_cast<uintptr_t>(view.keys) | reinterpret_cast<uintptr_t>(view.values)) % 16 == 0;
  }

  void add_staged(ViewDesc view) {
    view.codec = read_as(view.codec);
    const uint32_t end = view.end, each = cut_views_ ? kStagedRows : end;
    for (uint32_t from = view.begin / 16 * 16; from < end; from += each) {
      view.begin = std::max(view.begin, static_cast<uint16_t>(from)), view.end = static_cast<uint16_t>(std::min(end, from + each));
      add_to_run(view, 0, chunks_of(view, kStagedTile));
    }
  }

  uint64_t fast_cost(uint32_t codec) const { return side_bytes(codec) * (is_klt(plan_.fast) ? kKltFactor : 1); }
  uint64_t side_bytes(uint32_t codec) const { return block_bytes(input_.codecs[codec]); }

  void begin_run(uint32_t task, Path path) {
    if (!runs_.empty() && runs_.back().views == 0) runs_.pop_back();
    runs_.push_back({task, path, 0, static_cast<uint32_t>(plan_.views.size()), 0, 0, 0, nullptr});
  }

  void add_to_run(const ViewDesc& desc, uint64_t warps, uint64_t cost) {
    plan_.views.push_back(desc);
    if (runs_.back().views++ == 0) runs_.back().codec = desc.codec;
    runs_.back().warps += warps;
    runs_.back().cost += cost;
  }

  void add_view(const PlanTask& task, const attn::BlockView& view, const Placed& placed) {
    ViewDesc desc;
    desc.keys = placed.keys, desc.values = placed.values;
    desc.first_position = view.ctx.first_position;
    desc.codec = placed.codec;
    if (!limit(task, view, desc)) return;
    plan_.bytes += side_bytes(placed.codec) * view.rows / input_.codecs[placed.codec].key.tokens;
    const bool whole = desc.begin == 0 && desc.end == kTileRows && desc.mask == kNoMask;
    if (whole && aligned(desc) && paths_[placed.codec] != Path::general) {
      fast_.push_back(desc);
    } else if (const std::optional<Frame> frame = staged_frame(input_.codecs[placed.codec])) {
      staged_[static_cast<size_t>(*frame)].push_back(desc);
    } else {
      add_general(desc);
    }
  }

  void add_general(const ViewDesc& desc) {
    const uint64_t chunks = chunks_of(desc, plan_.chunk_rows);
    add_to_run(desc, chunks, chunks * turn_cost() / kTurn);
  }

  // False: the query sees none of its rows.
  bool limit(const PlanTask& task, const attn::BlockView& view, ViewDesc& desc) {
    const attn::AttendParams& params = input_.params;
    uint32_t begin = 0, end = view.rows;
    if (view.ctx.positions == nullptr) {
      const uint64_t first = view.ctx.first_position, at = task.position;
      if (params.causal) end = static_cast<uint32_t>(std::min<uint64_t>(end, at >= first ? at - first + 1 : 0));
      if (params.window && first + params.window <= at) {
        begin = static_cast<uint32_t>(std::min<uint64_t>(end, at - params.window - first + 1));
      }
    } else {
      uint32_t words[kMaskWords] = {};
      uint32_t seen = 0;
      begin = view.rows, end = 0;
      for (uint32_t row = 0; row < view.rows; ++row) {
        if (!sees(params, task.position, view.position(row))) continue;
        words[row / 32] |= 1u << (row % 32);
        begin = std::min(begin, row), end = row + 1, ++seen;
      }
      if (seen != 0 && seen != end - begin) {
        desc.mask = static_cast<uint32_t>(plan_.masks.size() / kMaskWords);
        plan_.masks.insert(plan_.masks.end(), words, words + kMaskWords);
      }
    }
    desc.begin = static_cast<uint16_t>(begin), desc.end = static_cast<uint16_t>(end);
    return begin < end;
  }

  // Less than a turn of all warps takes as long as one. So a tail costs the same from step to step, and is shared out alike.
  void round_up_turns() {
    for (Run& run : runs_) {
      if (run.path == Path::general && run.warps <= kTurn) run.warps = kTurn, run.cost = std::max(run.cost, turn_cost());
    }
  }

  // Where piece i of `count` begins. Even, since a warp may take views in pairs.
  static uint64_t share(const Run& run, uint64_t i, uint64_t count) {
    return i == count ? run.views : std::min<uint64_t>(run.views, (run.views * i / count + 1) / 2 * 2);
  }

  // Blocks that the warps of a fast thread block work on at a time (packed.cuh, klt.cuh).
  uint64_t round_views() const {
    switch (plan_.fast) {
      case Path::packed44: return 8;
      case Path::packed42: return 12;
      case Path::klt:
      case Path::klt_better: return input_.group <= 4 ? 32 : 16;
      default: return 16;
    }
  }

  // A turn of the general path takes its time however few warps have work, a round of a fast one half of its time at least.
  uint64_t cost_of(const Run& run, uint64_t views) const {
    if (run.path == Path::general) {
      const uint64_t cost = run.cost * views / run.views, turn = turn_cost();
      return (cost + turn - 1) / turn * turn;
    }
    const uint64_t round = round_views(), rest = views % round;
    return run.cost * (views - rest + (rest == 0 ? 0 : std::max(rest, round / 2))) / run.views;
  }

  static uint64_t segment_cost(const Run& run) { return is_klt(run.path) ? kKltSegment : kSegment; }

  // Every run in equal pieces of at most about `most`, the largest first.
  std::vector<Piece> pieces_of(uint64_t most) const {
    std::vector<Piece> pieces;
    for (uint32_t r = 0; r < runs_.size(); ++r) {
      const Run& run = runs_[r];
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
    std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.cost > b.cost; });
    return pieces;
  }

  // A settled run may seem to begin among the plan's own views: until the list's front has grown for them.
  const ViewDesc* descs_of(const Run& run) const { return run.descs ? run.descs : plan_.views.data() + run.first; }

  // A view for each warp, or as many as all have room at once with.
  uint32_t views_of_warm_piece() const {
    uint64_t views = 0;
    for (const Run& run : runs_) views += run.path == Path::warm ? run.views : 0;
    const uint64_t rounds = views / (kWarmWarps * staged_room()) + 1;
    return static_cast<uint32_t>(kWarmWarps * rounds);
  }
  // Of a warm run in pieces of about `most` views.
  void add_warm_pieces(uint32_t r, uint32_t most, std::vector<Piece>& pieces) const {
    const uint32_t views = runs_[r].views, count = (views + most - 1) / most;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t from = views * i / count, to = views * (i + 1) / count;
      pieces.push_back({r, from, to - from, 0});
    }
  }

  // Staged runs in pieces of at most `most` tiles, or of one view; and warm ones.
  std::vector<Piece> staged_pieces(uint64_t most) const {
    std::vector<Piece> pieces;
    const uint32_t warm_views = views_of_warm_piece();
    for (uint32_t r = 0; r < runs_.size(); ++r) {
      const Run& run = runs_[r];
      if (run.path == Path::warm) add_warm_pieces(r, warm_views, pieces);
      if (run.path != Path::staged) continue;
      const uint64_t count = (run.cost + most - 1) / most, fair = std::max((run.cost + count - 1) / count, kStagedPiece);
      for (uint32_t v = 0; v < run.views; ++v) {
        const uint64_t tiles = chunks_of(descs_of(run)[v], kStagedTile);
        const bool fits = v != 0 && pieces.back().cost + tiles <= fair;
        if (fits) ++pieces.back().views, pieces.back().cost += tiles;
        else pieces.push_back({r, v, 1, tiles});
      }
    }
    return pieces;
  }
  // As small as they all have room at once. They are not packed: a device gives its room to the next piece.
  std::vector<Piece> staged_pieces() const {
    uint64_t tiles = 0;
    for (const Run& run : runs_) tiles += run.path == Path::staged ? run.cost : 0;
    uint64_t most = std::max(kStagedPiece, tiles / staged_room());
    std::vector<Piece> pieces = staged_pieces(most);
    while (pieces.size() > staged_room() && most < tiles) pieces = staged_pieces(most += 1 + most / 16);
    return pieces;
  }

  using Bins = std::vector<std::vector<uint32_t>>;  // of a cta: indices of pieces

  // The largest piece to the cta that has least, of `count` that begin with number `first`. Returns what the fullest has.
  uint64_t pack(const std::vector<Piece>& pieces, bool general, uint32_t first, uint32_t count, Bins* bins) const {
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
  uint32_t share_ctas(const std::vector<Piece>& pieces, uint32_t ctas, uint64_t& fullest) const {
    uint64_t costs[2] = {};
    uint32_t counts[2] = {};
    for (const Piece& piece : pieces) {
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

  void share_out() {
    const uint32_t ctas = std::clamp(input_.ctas, 2u, kMostFirsts);
    Sharing fresh;
    const Sharing* sharing = remembered(ctas);
    if (!sharing) {
      share_out_anew(ctas, fresh);
      sharing = input_.sharings ? remember(std::move(fresh)) : &fresh;
    }
    add_segments(*sharing);
  }

  const Sharing* remembered(uint32_t ctas) const {
    if (!input_.sharings) return nullptr;
    for (const Sharing& kept : input_.sharings->kept) {
      if (kept.ctas == ctas && kept.chunk_rows == plan_.chunk_rows &&
          std::equal(kept.runs.begin(), kept.runs.end(), runs_.begin(), runs_.end(),
                     [](const Run& a, const Run& b) { return a.costs_as(b); }))
        return &kept;
    }
    return nullptr;
  }
  const Sharing* remember(Sharing sharing) const {
    Sharings& all = *input_.sharings;
    if (all.kept.size() < Sharings::kMost) {
      all.kept.push_back(std::move(sharing));
      return &all.kept.back();
    }
    Sharing& place = all.kept[std::exchange(all.next, (all.next + 1) % Sharings::kMost)];
    place = std::move(sharing);
    return &place;
  }

  // Tries piece sizes around the mean and takes the one whose fullest cta has least: small pieces balance, large ones begin and end
  // less often.
  void share_out_anew(uint32_t ctas, Sharing& out) const {
    uint64_t total = 0;
    for (const Run& run : runs_) total += beside_fast(run.path) ? 0 : run.cost + segment_cost(run);
    const uint64_t mean = total / ctas + 1;
    std::vector<Piece> best, before;
    uint64_t least = UINT64_MAX;
    uint32_t general = 0;
    for (const uint64_t percent :
         {300, 250, 200, 180, 165, 150, 142, 135, 130, 125, 120, 115, 110, 106, 103, 100, 95, 90, 80, 70, 60, 50, 33, 25}) {
      std::vector<Piece> pieces = pieces_of(mean * percent / 100);
      if (pieces == before) continue;
      before = pieces;
      uint64_t fullest = 0;
      const uint32_t share = share_ctas(pieces, ctas, fullest);
      if (fullest < least) least = fullest, best = std::move(pieces), general = share;
    }
    out.bins.resize(ctas);
    pack(best, true, 0, general, &out.bins);
    pack(best, false, general, ctas - general, &out.bins);
    out.runs = runs_, out.ctas = ctas, out.chunk_rows = plan_.chunk_rows, out.pieces = std::move(best), out.general = general;
  }

  // General thread blocks, then staged ones, a piece each, then fast ones.
  void add_segments(const Sharing& sharing) {
    const std::vector<Piece> staged = staged_pieces();
    count_partials(sharing.pieces, staged);
    end_cta();
    for (uint32_t b = 0; b < sharing.general; ++b) add_cta(sharing.pieces, sharing.bins[b]);
    plan_.general_ctas = ctas(), plan_.first_staged = static_cast<uint32_t>(plan_.segments.size());
    add_empty_tasks();
    for (const Piece& piece : staged) add_piece(piece), end_cta();
    plan_.staged_ctas = ctas() - plan_.general_ctas;
    for (size_t b = sharing.general; b < sharing.bins.size(); ++b) add_cta(sharing.pieces, sharing.bins[b]);
    for (uint32_t c = plan_.general_ctas + plan_.staged_ctas, i = 0; c < ctas(); ++c, ++i) {
      const SegmentDesc& first = plan_.segments[plan_.cta_begin[c]];
      const uint32_t count = plan_.cta_begin[c + 1] - plan_.cta_begin[c];
      plan_.firsts.of[i] = {first, fast_codec(input_.codecs[first.codec]), plan_.cta_begin[c], count};
    }
  }

  void count_partials(const std::vector<Piece>& pieces, const std::vector<Piece>& staged) {
    for (const Piece& piece : pieces) ++plan_.tasks[runs_[piece.run].task].partials;
    for (const Piece& piece : staged) ++plan_.tasks[runs_[piece.run].task].partials;
    for (TaskDesc& task : plan_.tasks) {
      task.first_partial = plan_.partials;
      next_.push_back(plan_.partials);
      plan_.partials += std::max(1u, task.partials);
    }
  }
  uint32_t ctas() const { return static_cast<uint32_t>(plan_.cta_begin.size() - 1); }
  void end_cta() { plan_.cta_begin.push_back(static_cast<uint32_t>(plan_.segments.size())); }
  void add_segment(uint32_t t, uint32_t first, uint32_t views, uint32_t codec, Path path) {
    plan_.segments.push_back({t, first, views, next_[t]++, plan_.tasks[t].first_row, codec, path});
  }
  void add_piece(const Piece& piece) {
    const Run& run = runs_[piece.run];
    add_segment(run.task, run.first + piece.first, piece.views, descs_of(run)[piece.first].codec, run.path);
  }
  void add_cta(const std::vector<Piece>& pieces, const std::vector<uint32_t>& bin) {
    for (const uint32_t i : bin) add_piece(pieces[i]);
    if (!bin.empty()) end_cta();
  }
  // A task that sees nothing has an empty segment, so that somebody writes its zeros.
  void add_empty_tasks() {
    for (uint32_t t = 0; t < plan_.tasks.size(); ++t) {
      if (plan_.tasks[t].partials != 0) continue;
      plan_.tasks[t].partials = 1;
      add_segment(t, 0, 0, 0, Path::staged), end_cta();
    }
  }

  const PlanInput& input_;
  Plan plan_;
  std::vector<Path> paths_;  // by codec
  std::vector<Run> runs_;
  std::vector<uint32_t> next_;              // by task: its next partial
  std::vector<ViewDesc> fast_, staged_[2];  // of the task at hand; staged ones by the frame of their values
  std::vector<uint32_t> read_as_;           // by codec: the one whose rows of 16-bit floats are alike
  std::vector<bool> warm_;                  // by codec: whole blocks may take the warm path
  bool cut_views_ = false;                  // staged views, into what a thread block takes at once
};

}  // namespace

bool readable(const quant::Codec& key, const quant::Codec& value, CodecDesc& out) {
  out.key_better = key.spec().top, out.value_better = value.spec().top;
  return key.layout(out.key) && value.layout(out.value) && out.value.kind != LayoutKind::words && fits_tiles(out.key) &&
         fits_tiles(out.value);
}

uint64_t block_bytes(const CodecDesc& codec) {
  return device_bytes(codec.key, codec.key_better) + device_bytes(codec.value, codec.value_better);
}

std::optional<Frame> staged_frame(const CodecDesc& codec) {
  if (codec.key_better + codec.value_better != 0 || !fits_staged(codec.key) || !fits_staged(codec.value)) return std::nullopt;
  return codec.value.hadamard ? Frame::hadamard : Frame::plain;
}

Path fast_path(const CodecDesc& codec, uint32_t group) {
  const SideLayout &key = codec.key, &value = codec.value;
  const bool better = codec.key_better + codec.value_better != 0;
  if (group > 8 || !fast_values(value, kTileRows) || key.tokens != kTileRows || key.head_dim != kTileRows) return Path::general;
  if (key.kind == LayoutKind::words) {
    const uint32_t words = key.words[0] + key.words[1] + key.words[2];
    if (!turns_halves(key) || words < 1 || words > kMostKltWords || klt_steps(key) > kMostKltSteps) return Path::general;
    if (!better) return Path::klt;
    const bool fits = codec.key_better <= kMostFastBetter && codec.value_better <= kMostFastBetter;
    return fits && codec.key_better != 0 && codec.value_better != 0 ? Path::klt_better : Path::general;
  }
  if (better) return Path::general;
  if (key.kind != LayoutKind::packed || key.has_levels || key.even || key.groups != 1) return Path::general;
  if (key.by_channel ? key.meta != MetaKind::f16_pair || key.mean_at != 0 : key.meta != MetaKind::log8_scale) return Path::general;
  if (key.bits == 2 && value.bits == 2) return group <= 4 ? Path::whole22 : Path::packed22;
  if (key.bits == 4 && value.bits == 4) return Path::packed44;
  if (key.bits == 4 && value.bits == 2) return Path::packed42;
  return Path::general;
}

bool takes_warm(const CodecDesc& codec, uint32_t group) {
  const SideLayout& key = codec.key;
  return group <= 8 && codec.key_better + codec.value_better == 0 && fast_values(codec.value, kWarmTokens) &&
         codec.value.bits == 4 && key.kind == LayoutKind::packed && key.bits == 4 && !key.has_levels && !key.by_channel &&
         key.groups == 1 && key.meta == MetaKind::log8_scale && key.tokens == kWarmTokens && key.head_dim == kTileRows;
}

Path ready_path(const CodecDesc& codec, uint32_t group) {
  const Path path = fast_path(codec, group);
  return is_klt(path) && !codec.key_fragments ? Path::general : path;
}

Plan make_plan(const PlanInput& input) { return Planner(input).make(); }

}  // namespace tierkv::cuda
