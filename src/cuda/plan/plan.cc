#include "cuda/plan/plan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "cuda/launch/fast_codec.h"
#include "cuda/plan/seen_rows.h"

namespace tierkv::cuda {
namespace {

using quant::LayoutKind;
using quant::SideLayout;

// So few settled views without a fast path are better listed again than a segment of their own.
constexpr uint32_t kFewSettled = 32;

// Multiprocessors that the fast kernel leaves to staged pieces, where there are many. An H200 has 132: blocks of sequences of equal
// lengths divide into 128 better than into any other number near it.
constexpr uint32_t kSpare = 4, kManyCtas = 32;
// Costs, as in share_out.h: of a staged piece; of 64 warm or plain rows where all places of a multiprocessor are at work, and where
// few are; of what a piece does around them; of what a fast thread block does before its first block and behind its last.
constexpr uint64_t kStagedCost = 800000, kBesideCost = 153000, kBesideAlone = 126000, kBesidePiece = 240000, kFastBegin = 500000;
// Warm blocks of a piece where all multiprocessors take part: one alone does not outweigh what is around it.
constexpr uint64_t kWarmPiece = 2;

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
    add_segments();
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
    // Of the codecs that are read here: with tables every head of every layer has one of its own.
    constexpr uint64_t kNotSeen = ~uint64_t{0};
    std::vector<uint64_t> bytes(input_.codecs.size(), kNotSeen);
    std::vector<uint32_t> seen;
    const auto add = [&](uint32_t codec, uint64_t rows) {
      if (bytes[codec] == kNotSeen) bytes[codec] = 0, seen.push_back(codec);
      bytes[codec] += rows;
    };
    for (const PlanTask& task : input_.tasks) {
      for (size_t v = 0; v < task.views.size(); ++v) add(task.placed[v].codec, task.views[v].rows == kTileRows ? kTileRows : 0);
      for (const SettledRun& run : task.settled) add(run.codec, run.path > Path::staged ? uint64_t{kTileRows} * run.views : 0);
    }
    std::array<uint64_t, kPathCount> by_path{};
    for (const uint32_t c : seen) {
      warm_[c] = takes_warm(input_.codecs[c], input_.group);
      paths_[c] = ready_path(input_.codecs[c], input_.group);
      by_path[static_cast<size_t>(paths_[c])] += bytes[c] * (input_.codecs[c].key.bytes + input_.codecs[c].value.bytes);
    }
    by_path[0] = 0;
    // Beside other blocks of klt, those that whole numbers would do for are read as the others are.
    if (by_path[static_cast<size_t>(Path::klt)] != 0) {
      std::replace(paths_.begin(), paths_.end(), Path::klt_whole, Path::klt);
      by_path[static_cast<size_t>(Path::klt)] += std::exchange(by_path[static_cast<size_t>(Path::klt_whole)], 0);
    }
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
  // Thread blocks of the staged path that a multiprocessor has room for at once, and those multiprocessors that take part.
  uint32_t room_each() const {
    return plan_.only_beside ? kBesideRoom : input_.params.head_dim > 128 ? kStagedWideRoom : kStagedRoom;
  }
  uint64_t staged_room() const { return uint64_t{plan_.staged_last ? kSpare : std::max(1u, input_.ctas)} * room_each(); }
  // Of a settled run without the launch's fast path, as of its codec.
  std::optional<Frame> frame_of(const SettledRun& run) const {
    return run.path == Path::general ? std::nullopt : staged_frame(input_.codecs[run.codec]);
  }
  uint64_t turn_cost() const { return cuda::turn_cost(plan_.chunk_rows); }

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
    if (input_.codecs[codec].key.kind != LayoutKind::rows16) return codec;
    if (codec == read_last_) return read_as_;
    uint32_t first = 0;
    while (first < codec && !alike(input_.codecs[first], input_.codecs[codec])) ++first;
    read_last_ = codec, read_as_ = first;
    return first;
  }
  static bool alike(const CodecDesc& a, const CodecDesc& b) {
    const auto plain = [](const SideLayout& x, const SideLayout& y) {
      return x.kind == LayoutKind::rows16 && y.kind == LayoutKind::rows16 && x.bf16 == y.bf16 && x.head_dim == y.head_dim;
    };
    return plain(a.key, b.key) && plain(a.value, b.value);
  }

  // Whole blocks that the warm path takes, codec by codec; then rows of halves; then the others.
  void add_staged(uint32_t index, const std::vector<ViewDesc>& views) {
    uint32_t codec = UINT32_MAX;
    for (const ViewDesc& view : views) {
      if (!is_warm(view)) continue;
      if (std::exchange(codec, view.codec) != view.codec) begin_run(index, Path::warm);
      add_to_run(view, 0, chunks_of(view, kStagedTile));
    }
    begin_run(index, Path::plain);
    for (const ViewDesc& view : views) {
      if (!is_warm(view) && is_plain(view)) add_staged(view);
    }
    begin_run(index, Path::staged);
    for (const ViewDesc& view : views) {
      if (!is_warm(view) && !is_plain(view)) add_staged(view);
    }
  }
  // Rows of halves, whatever the heads' number.
  bool is_plain(const ViewDesc& view) const { return takes_plain(input_.codecs[view.codec]) && aligned(view); }
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
    if (!limit_rows(input_.params, task.position, view, desc, plan_.masks)) return;
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

  // Less than a turn of all warps takes as long as one. So a tail costs the same from step to step, and is shared out alike.
  void round_up_turns() {
    for (Run& run : runs_) {
      if (run.path == Path::general && run.warps <= kTurn) run.warps = kTurn, run.cost = std::max(run.cost, turn_cost());
    }
  }

  // General thread blocks, then staged ones, a piece each, then fast ones.
  void add_segments() {
    plan_.only_beside = beside_takes(input_.params.head_dim) &&
                        std::none_of(runs_.begin(), runs_.end(), [](const Run& run) { return run.path == Path::staged; });
    plan_.staged_last = staged_last();
    const uint32_t most = std::clamp(input_.ctas - (plan_.staged_last ? kSpare : 0), 2u, kMostFirsts);
    Sharing fresh;
    const uint32_t dim = input_.params.head_dim;
    const Sharing& sharing = share_out(runs_, {most, plan_.chunk_rows, plan_.fast, input_.group, dim, input_.sharings}, fresh);
    const std::vector<Piece> staged = staged_pieces(runs_, plan_.views.data(), staged_room(), warm_piece());
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
      const uint32_t at = plan_.cta_begin[c], count = plan_.cta_begin[c + 1] - at;
      plan_.firsts.of[i] = {first.first_view,
                            first.views,
                            first.task,
                            first.first_row,
                            first.first_partial,
                            at,
                            static_cast<uint16_t>(first.partial - first.first_partial),
                            static_cast<uint16_t>(first.partials),
                            first_codec(first),
                            static_cast<uint16_t>(count)};
    }
  }
  // Of a thread block's first segment, among those in the parameters.
  uint16_t first_codec(const SegmentDesc& segment) {
    for (uint32_t i = 0; i < first_codecs_; ++i) {
      if (plan_.firsts.codecs[i].index == segment.codec) return static_cast<uint16_t>(i);
    }
    if (first_codecs_ == kMostFirstCodecs || segment.codec > UINT16_MAX) return kNoFirstCodec;
    const auto& codecs = input_.readers.empty() ? input_.codecs : input_.readers;
    FastCodec& out = plan_.firsts.codecs[first_codecs_] = fast_codec(codecs[segment.codec]);
    out.index = static_cast<uint16_t>(segment.codec);
    return static_cast<uint16_t>(first_codecs_++);
  }

  // Whether a few multiprocessors can do all staged pieces in the time that the others take for the fast ones. Otherwise they are
  // shared out among all, and go first.
  bool staged_last() const {
    if (plan_.fast == Path::general || input_.ctas < kManyCtas) return false;
    uint64_t beside = 0;
    for (const Run& run : runs_) {
      if (run.path == Path::staged) beside += (run.cost + kStagedPiece - 1) / kStagedPiece * kStagedCost;
      if (run.path == Path::plain) beside += (run.cost + kPlainTiles - 1) / kPlainTiles * kBesideCost;
      if (run.path == Path::warm) beside += run.views * kBesideCost;
    }
    return beside != 0 && beside <= fast_time() * kSpare * room_each();
  }
  // Of what a fast thread block does, where some multiprocessors are left free.
  uint64_t fast_time() const {
    uint64_t fast = 0;
    for (const Run& run : runs_) fast += run.path == plan_.fast ? run.cost : 0;
    return kFastBegin + fast / (input_.ctas - kSpare);
  }
  // Fewer states are merged sooner: beside a fast kernel, a piece may take as long as that does.
  uint64_t warm_piece() const {
    const uint64_t time = plan_.staged_last ? fast_time() : 0;
    return time < kBesidePiece + kBesideAlone * kWarmPiece ? kWarmPiece : (time - kBesidePiece) / kBesideAlone;
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
    const TaskDesc& task = plan_.tasks[t];
    plan_.segments.push_back({t, first, views, next_[t]++, task.first_row, codec, path, {}, task.first_partial, task.partials});
  }
  void add_piece(const Piece& piece) {
    const Run& run = runs_[piece.run];
    add_segment(run.task, run.first + piece.first, piece.views, descs_of(run, plan_.views.data())[piece.first].codec, run.path);
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
      add_segment(t, 0, 0, 0, plan_.only_beside ? Path::plain : Path::staged), end_cta();
    }
  }

  const PlanInput& input_;
  Plan plan_;
  std::vector<Path> paths_;  // by codec
  std::vector<Run> runs_;
  std::vector<uint32_t> next_;                     // by task: its next partial
  std::vector<ViewDesc> fast_, staged_[2];         // of the task at hand; staged ones by the frame of their values
  uint32_t read_last_ = UINT32_MAX, read_as_ = 0;  // a codec, and the first one whose rows of 16-bit floats are alike
  std::vector<bool> warm_;                         // by codec: whole blocks may take the warm path
  uint32_t first_codecs_ = 0;                      // that the parameters have
  bool cut_views_ = false;                         // staged views, into what a thread block takes at once
};

}  // namespace

Plan make_plan(const PlanInput& input) { return Planner(input).make(); }

}  // namespace tierkv::cuda
