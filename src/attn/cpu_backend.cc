#include "attn/cpu_backend.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>

#include "attn/rows.h"
#include "base/guarded.h"
#include "base/loan.h"
#include "base/per_thread.h"
#include "base/status_macros.h"

namespace tierkv::attn {
namespace {

struct WideRows {
  std::vector<float> rows;
};

// The rows of a work as floats, in memory of this thread where they are not yet.
const float* wide_rows(const EncodeWork& work) {
  if (work.rows) return work.rows;
  const quant::BlockShape& shape = work.codec->shape();
  std::vector<float>& out = per_thread<WideRows>().rows;
  out.resize(static_cast<size_t>(shape.tokens) * shape.head_dim);
  if (!work.blocks.empty()) decode_blocks(work.blocks, work.codec->side(), out.data());
  else widen_halves(work.tail.rows, work.tail.bf16, static_cast<uint32_t>(out.size()), out.data());
  return out.data();
}

// Rows of a view list that one task takes when few queries look at many tokens.
constexpr uint32_t kSplitRows = 1024;
// What "few" is: rows of queries of one KV head.
constexpr uint32_t kSplitQueryRows = 16;
// Rows of queries a task takes at a time otherwise. A block is unpacked once for all of them.
constexpr uint32_t kTileRows = 48;
// Sums of mass that the queries of a head are cut into at most. Each has a float for every row and lane.
constexpr uint32_t kMostSums = 32;

// Nothing in it outlives a task.
struct TileScratch {
  Scratch attn;
  Partial partial;
  std::vector<float> rows, out, lse;

  // Kept weights whose head is done. The next head's go where these were: the memory is known to the system, and warm.
  void put_back(KeptWeights& weights) {
    if (spare.capacity() == 0) spare.reserve(kMostSpare);
    if (spare.size() < kMostSpare) spare.push_back(std::move(weights));
    weights = {};
  }
  void take_spare() {
    if (spare.empty() || !attn.weighed.weights.empty()) return;
    attn.weighed = std::move(spare.back());
    spare.pop_back();
  }

 private:
  static constexpr size_t kMostSpare = 64;
  std::vector<KeptWeights> spare;
};

enum class Kind : uint8_t { part, tile };
enum Failure : uint8_t { kNone, kMemory, kOverflow };

struct Task {
  Kind kind;
  uint32_t work;
  uint32_t head;
  uint32_t first, count;  // part: views; tile: queries, of one tile or of several
  uint32_t partial;       // part: where its state goes; tile: where its mass goes, or kAlone
  uint32_t join;          // part: index of its head's Join; kAlone: it is the head's only one
};
constexpr uint32_t kAlone = 0xFFFFFFFFu;

// The parts of one KV head that are merged by the last to finish.
struct Join {
  uint32_t first_partial = 0, partials = 0;
  std::atomic<uint32_t> left{0};
};

uint32_t group_of(const AttendWork& work) { return work.queries.heads / static_cast<uint32_t>(work.heads.size()); }

// Many queries are cut along the queries, few along the views.
bool in_tiles(const AttendWork& work) { return work.queries.tokens * group_of(work) > kSplitQueryRows; }

uint32_t tile_queries(const AttendWork& work) { return std::max(1u, kTileRows / group_of(work)); }

QueryTile describe_tile(const AttendWork& work, uint32_t head, uint32_t first, uint32_t count, const float* rows) {
  const uint32_t group = group_of(work);
  return {rows, count, group, work.positions + first, work.sink_logits ? work.sink_logits + head * group : nullptr, first};
}

// Queries first..first+count-1 of one KV head as a tile, its rows widened into the scratch.
QueryTile load_tile(const AttendWork& work, uint32_t head, uint32_t first, uint32_t count, TileScratch& scratch) {
  const uint32_t d = work.params.head_dim, group = group_of(work);
  const size_t rows = static_cast<size_t>(count) * group;
  scratch.rows.resize(rows * d);
  scratch.out.resize(rows * d);
  for (uint32_t q = 0; q < count; ++q) {
    for (uint32_t g = 0; g < group; ++g) {
      widen_row(work.queries, first + q, head * group + g, scratch.rows.data() + (static_cast<size_t>(q) * group + g) * d);
    }
  }
  return describe_tile(work, head, first, count, scratch.rows.data());
}

// Where a tile's sums are to be written, or null: nobody wants them.
float* lse_of(const AttendWork& work, uint32_t count, TileScratch& scratch) {
  if (!work.lse && work.mass.empty()) return nullptr;
  scratch.lse.resize(static_cast<size_t>(count) * group_of(work));
  return scratch.lse.data();
}

void store_tile(const AttendWork& work, uint32_t head, uint32_t first, uint32_t count, const TileScratch& scratch) {
  if (!work.out) return;
  const size_t d = work.params.head_dim, group = group_of(work);
  for (uint32_t q = 0; q < count; ++q) {
    const size_t row = static_cast<size_t>(first + q) * work.queries.heads + head * group;
    std::memcpy(work.out + row * d, scratch.out.data() + q * group * d, group * d * sizeof(float));
    if (work.lse) std::memcpy(work.lse + row, scratch.lse.data() + q * group, group * sizeof(float));
  }
}

// The sums of a tile's rows that mass is taken against: the tile's own, or those of the whole that its views are a part of.
const float* mass_sums(const AttendWork& work, uint32_t head, uint32_t first, uint32_t count, TileScratch& scratch) {
  const size_t group = group_of(work);
  for (uint32_t q = 0; work.whole && q < count; ++q) {
    const float* row = work.whole + static_cast<size_t>(first + q) * work.queries.heads + head * group;
    std::copy_n(row, group, scratch.lse.data() + q * group);
  }
  return scratch.lse.data();
}

// The work's parameters for views first..: which of them keep their weights.
AttendParams params_of(const AttendWork& work, uint32_t head, uint32_t first) {
  AttendParams params = work.params;
  if (!work.mass.empty()) params.weigh_from = std::max(work.mass[head].from, first) - first;
  return params;
}

// Rows of a head's views from..end-1.
size_t rows_between(const AttendWork& work, uint32_t head, uint32_t from, uint32_t end) {
  size_t rows = 0;
  for (uint32_t v = from; v < end; ++v) rows += work.heads[head][v].rows;
  return rows;
}

// States of parts, kept from call to call with the memory they have.
struct Partials : std::vector<Partial> {
  void trim() noexcept {
    if (size() > 4096) erase(begin() + 4096, end());
  }
};

// One call of attend(): its tasks, and what they share.
class Piece {
 public:
  explicit Piece(std::span<AttendWork> works) : works_(works), failures_(works.size()) {
    size_t heads = 0;
    for (const AttendWork& work : works_) heads += work.heads.size();
    tasks_.reserve(heads);
    for (uint32_t w = 0; w < works.size(); ++w) {
      const AttendWork& work = works_[w];
      if (work.queries.tokens == 0) continue;
      if (in_tiles(work)) {
        cut_queries(w);
      } else {
        for (uint32_t h = 0; h < work.heads.size(); ++h) cut_views(w, h);
      }
    }
    tile_mass_.resize(num_tile_masses_);
    if (num_joins_ == 0) return;
    if (partials_->size() < num_partials_) partials_->resize(num_partials_);
    // Counters cannot move, so they come when their number is known.
    joins_ = std::make_unique<Join[]>(num_joins_);
    for (const Task& task : tasks_) {
      if (task.kind != Kind::part || task.join == kAlone) continue;
      Join& join = joins_[task.join];
      if (join.partials++ == 0) join.first_partial = task.partial;
      join.left.store(join.partials, std::memory_order_relaxed);
    }
  }

  uint32_t tasks() const { return static_cast<uint32_t>(tasks_.size()); }

  void run(uint32_t index) noexcept {
    const Task& task = tasks_[index];
    try {
      run_task(task);
    } catch (const std::bad_alloc&) {
      fail(task.work, kMemory);
    }
    if (task.kind == Kind::part && task.join != kAlone) finish_part(task);
  }

  // Tiles of one head add up in the order of their queries, whoever was first.
  void add_tile_masses() {
    for (const AttendWork& work : works_) {
      if (!in_tiles(work)) continue;
      for (const HeadMass& mass : work.mass) std::fill_n(mass.sums, mass.num_lanes() * mass.rows, 0.0f);
    }
    for (const Task& task : tasks_) {
      if (task.kind != Kind::tile || task.partial == kAlone) continue;
      const std::vector<float>& mass = tile_mass_[task.partial];
      float* sums = works_[task.work].mass[task.head].sums;
      for (size_t i = 0; i < mass.size(); ++i) sums[i] += mass[i];
    }
  }

  void report() {
    for (size_t w = 0; w < works_.size(); ++w) {
      const uint8_t failure = failures_[w].load(std::memory_order_relaxed);
      if (failure == kMemory) works_[w].status = status(StatusCode::resource_exhausted, "the system refused memory for attention");
      if (failure == kOverflow) {
        works_[w].status =
            status(StatusCode::invalid_argument, "attention overflows 32-bit floats: queries, keys or values are too large");
      }
    }
  }

 private:
  // Saying that memory was refused must not need memory: without any, the sentence is short enough to need none.
  static Status status(StatusCode code, const char* message) noexcept {
    try {
      return Status(code, message);
    } catch (const std::bad_alloc&) {
      return Status(code, "out of memory");
    }
  }

  // Runs of about kSplitRows rows.
  void cut_views(uint32_t w, uint32_t h) {
    const auto& views = works_[w].heads[h];
    const size_t first_task = tasks_.size();
    uint32_t first = 0, rows = 0;
    for (uint32_t v = 0; v < views.size(); ++v) {
      rows += views[v].rows;
      if (rows < kSplitRows && v + 1 < views.size()) continue;
      tasks_.push_back({Kind::part, w, h, first, v + 1 - first, 0, kAlone});
      first = v + 1;
      rows = 0;
    }
    if (views.empty()) tasks_.push_back({Kind::part, w, h, 0, 0, 0, kAlone});  // outputs of nothing are zeros
    if (tasks_.size() - first_task == 1) return;
    for (size_t t = first_task; t < tasks_.size(); ++t) {
      tasks_[t].partial = num_partials_++;
      tasks_[t].join = num_joins_;
    }
    ++num_joins_;
  }

  // Tiles, one a task; with mass several, so that long prompts need no more memory for sums than short ones.
  void cut_queries(uint32_t w) {
    const AttendWork& work = works_[w];
    const uint32_t tiles = (work.queries.tokens + tile_queries(work) - 1) / tile_queries(work);
    const uint32_t a_task = (work.mass.empty() ? 1 : (tiles + kMostSums - 1) / kMostSums) * tile_queries(work);
    for (uint32_t first = 0; first < work.queries.tokens; first += a_task) {
      const uint32_t count = std::min(a_task, work.queries.tokens - first);
      for (uint32_t h = 0; h < work.heads.size(); ++h) {
        const uint32_t mass = wants_mass(work, h, first, first + count - 1) ? num_tile_masses_++ : kAlone;
        tasks_.push_back({Kind::tile, w, h, first, count, mass, kAlone});
      }
    }
  }

  // Whether one of some queries gives mass to a view of which somebody wants to know it. They come in the order of their positions.
  static bool wants_mass(const AttendWork& work, uint32_t head, uint32_t first, uint32_t last) {
    if (work.mass.empty() || work.mass[head].from >= work.heads[head].size() || !work.mass[head].hears(first, last + 1))
      return false;
    return !work.params.causal || work.positions[last] >= work.heads[head][work.mass[head].from].ctx.first_position;
  }

  // What the kept weights of a tile add to its sums.
  static void add_tile_mass(const AttendWork& work, uint32_t head, const QueryTile& tile, const KeptWeights& kept, float* sums) {
    const HeadMass& mass = work.mass[head];
    if (mass.lanes.empty()) return sum_mass(work.heads[head], mass.from, tile, kept, true, sums);
    add_lanes(work.heads[head], mass.from, tile, kept, mass.lanes, sums, mass.rows);
  }

  // What the parts of a head give its rows. Part by part, so that sums are near when weights are added.
  static void sum_parts(const AttendWork& work, uint32_t head, const QueryTile& tile, std::span<Partial> partials,
                        const float* lse) {
    const HeadMass& mass = work.mass[head];
    float* sums = mass.sums;
    for (Partial& part : partials) {
      if (part.end_view <= mass.from) continue;
      const auto views = work.heads[head].subspan(part.first_view, part.end_view - part.first_view);
      const uint32_t first = std::max(part.first_view, mass.from);
      const size_t rows = rows_between(work, head, first, part.end_view);
      tops_to_shares(part.weighed, lse, tile.queries * tile.group);
      if (mass.lanes.empty()) {
        sum_mass(views, first - part.first_view, tile, part.weighed, false, sums);
      } else {
        for (size_t l = 0; l < mass.lanes.size(); ++l) std::fill_n(sums + l * mass.rows, rows, 0.0f);
        add_lanes(views, first - part.first_view, tile, part.weighed, mass.lanes, sums, mass.rows);
      }
      sums += rows;
    }
  }

  void run_task(const Task& task) {
    TileScratch& scratch = per_thread<TileScratch>();
    const AttendWork& work = works_[task.work];
    if (task.kind == Kind::tile) return run_tiles(task, scratch);
    const QueryTile tile = load_tile(work, task.head, 0, work.queries.tokens, scratch);
    const auto views = work.heads[task.head].subspan(task.first, task.count);
    Partial& partial = task.join == kAlone ? scratch.partial : (*partials_)[task.partial];
    partial.first_view = task.first;
    partial.end_view = task.first + task.count;
    if (!work.mass.empty() && task.join != kAlone) scratch.take_spare();
    attend_partial(views, tile, params_of(work, task.head, task.first), partial, scratch.attn);
    if (task.join == kAlone) merge_head(task, {&partial, 1}, scratch);
  }

  void run_tiles(const Task& task, TileScratch& scratch) {
    const AttendWork& work = works_[task.work];
    if (task.partial != kAlone) {
      const HeadMass& wanted = work.mass[task.head];
      tile_mass_[task.partial].assign(wanted.num_lanes() * wanted.rows, 0.0f);
    }
    const uint32_t a_tile = tile_queries(work), end = task.first + task.count;
    for (uint32_t first = task.first; first < end; first += a_tile) run_tile(task, first, std::min(a_tile, end - first), scratch);
  }

  void run_tile(const Task& task, uint32_t first, uint32_t count, TileScratch& scratch) {
    const AttendWork& work = works_[task.work];
    const QueryTile tile = load_tile(work, task.head, first, count, scratch);
    float* lse = lse_of(work, count, scratch);
    const bool weighs = task.partial != kAlone && wants_mass(work, task.head, first, first + count - 1);
    const AttendParams params = weighs ? params_of(work, task.head, 0) : work.params;
    if (!attn::attend(work.heads[task.head], tile, params, scratch.out.data(), scratch.attn, nullptr, lse)) {
      fail(task.work, kOverflow);
    }
    store_tile(work, task.head, first, count, scratch);
    if (!weighs) return;
    tops_to_shares(scratch.attn.weighed, mass_sums(work, task.head, first, count, scratch), count * tile.group);
    add_tile_mass(work, task.head, tile, scratch.attn.weighed, tile_mass_[task.partial].data());
  }

  void merge_head(const Task& task, std::span<Partial> partials, TileScratch& scratch) {
    const AttendWork& work = works_[task.work];
    const uint32_t queries = work.queries.tokens;
    const QueryTile tile = describe_tile(work, task.head, 0, queries, nullptr);  // a merge looks at no query
    float* lse = lse_of(work, queries, scratch);
    if (!merge(partials, tile, work.params, scratch.out.data(), lse)) fail(task.work, kOverflow);
    store_tile(work, task.head, 0, queries, scratch);
    if (work.mass.empty()) return;
    sum_parts(work, task.head, tile, partials, mass_sums(work, task.head, 0, queries, scratch));
    if (task.join == kAlone) return;
    for (Partial& part : partials) scratch.put_back(part.weighed);
  }

  void finish_part(const Task& task) noexcept {
    Join& join = joins_[task.join];
    if (join.left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (failures_[task.work].load(std::memory_order_relaxed) == kMemory) return;  // a part may be missing
    try {
      TileScratch& scratch = per_thread<TileScratch>();
      const AttendWork& work = works_[task.work];
      scratch.out.resize(static_cast<size_t>(work.queries.tokens) * group_of(work) * work.params.head_dim);
      merge_head(task, std::span<Partial>(*partials_).subspan(join.first_partial, join.partials), scratch);
    } catch (const std::bad_alloc&) {
      fail(task.work, kMemory);
    }
  }

  // Want of memory counts for more than an overflow: parts may be missing.
  void fail(uint32_t work, Failure failure) noexcept {
    if (failure == kMemory) {
      failures_[work].store(kMemory, std::memory_order_relaxed);
    } else {
      uint8_t none = kNone;
      failures_[work].compare_exchange_strong(none, failure, std::memory_order_relaxed);
    }
  }

  std::span<AttendWork> works_;
  std::vector<Task> tasks_;
  Loan<Partials> partials_;  // at least as many as there are parts
  std::vector<std::vector<float>> tile_mass_;
  std::unique_ptr<Join[]> joins_;
  std::vector<std::atomic<uint8_t>> failures_;
  uint32_t num_partials_ = 0, num_joins_ = 0, num_tile_masses_ = 0;
};

class CpuBackend final : public Backend {
 public:
  Status accepts(const RowsView& rows, const char* what) const override {
    if (rows.place == MemoryPlace::host) return {};
    return error(StatusCode::unsupported, what, " are in a device's memory, and this cache works in host memory");
  }

  void encode(std::span<EncodeWork> blocks, const Executor& run) const override {
    run(static_cast<uint32_t>(blocks.size()), [&](uint32_t i) {
      EncodeWork& block = blocks[i];
      block.status = guarded("encode a block", [&] { return block.codec->encode(wide_rows(block), block.ctx, block.out); });
    });
  }

  void decode(std::span<const DecodeWork> blocks, const Executor& run) const override {
    std::atomic<bool> refused = false;
    const auto decode_one = [&](uint32_t i) {
      const DecodeWork& block = blocks[i];
      const auto decode = [&] {
        block.codec->decode(block.in, block.ctx, block.first, block.count, block.out);
        return true;
      };
      if (!with_memory(decode)) refused.store(true, std::memory_order_relaxed);
    };
    run(static_cast<uint32_t>(blocks.size()), decode_one);
    if (refused.load(std::memory_order_relaxed)) throw std::bad_alloc();
  }

  void attend(std::span<AttendWork> works, const Executor& run) const override {
    Piece piece(works);
    run(piece.tasks(), [&](uint32_t index) { piece.run(index); });
    piece.add_tile_masses();
    piece.report();
  }
};

}  // namespace

const Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

}  // namespace tierkv::attn
