// stream.h — the tokens of one KV head of one layer of one sequence: sealed blocks, oldest first, then the hot tail.
//
//   blocks: [sinks][archive …][warm …]   tail: [hot rows and the block being filled]
//
// A stream moves rows between tiers: the tail's front graduates into a warm block, the oldest warm blocks into an archive block,
// evicted rows die in place and thinned-out neighbours merge. Each step makes its new block first and only then lets go of the old
// ones, so that running out of memory leaves everything where it was. Every operation here is under the lock of
// its sequence, and but for settle() on one stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "attn/cpu_backend.h"
#include "plan/layer_plan.h"
#include "tiers/block_list.h"
#include "tiers/tail.h"

namespace tierkv::tiers {

using plan::LayerPlan;

// Rows that moved, over the life of a cache. Threads: any.
struct Moves {
  std::atomic<uint64_t> graduated[kNumTiers] = {};  // into a block of the tier
  std::atomic<uint64_t> evicted{0};
};

// What every stream of a cache needs to know.
struct StreamEnv {
  Arena* arena = nullptr;
  uint32_t head_dim = 0;
  uint32_t signals = 0;   // statistics per token
  bool hot_bf16 = false;  // the tail's rows are bf16, not fp16
  const attn::Backend* backend = &attn::cpu_backend();
  BlockStore* store = nullptr;
  const CodecEntry* cold_codec = nullptr;  // of copies in the cold file, in blocks of the archive's size; null: none are made
  const CodecEntry* cold_raw = nullptr;    // 16-bit rows, for rows that it refuses
  int mass = -1;                           // which of them is the mass that a token received; -1: it is not kept
  bool archive_stats = true;               // archived tokens keep theirs; false: they only said which rows are kept better there

  Moves* moves = nullptr;  // null: nobody counts

  void count_graduated(Tier tier, uint64_t rows) const {
    if (moves) moves->graduated[static_cast<int>(tier)].fetch_add(rows, std::memory_order_relaxed);
  }
  bool keeps_stats(Tier tier) const { return signals != 0 && (archive_stats || tier != Tier::archive); }
};

struct HeadStream {
  BlockList blocks;
  Tail tail;
  uint32_t layer = 0;
  uint32_t head = 0;

  // Where warm blocks begin, and the live rows from there on. To see it takes a look at every block, and between two blocks that a
  // stream gets there are many appends that ask.
  struct Warm {
    uint64_t version = 0;  // of the blocks that this is of
    size_t first = 0;
    uint64_t rows = 0;
  };
  const Warm& warm() const;

 private:
  mutable Warm warm_;
};

// Graduates and demotes whatever is due, at most `most` archive blocks of it. False: memory ran out; what could not move stays in
// the better tier.
inline constexpr uint32_t kAllDue = 0xFFFFFFFFu;
[[nodiscard]] bool settle(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, uint32_t most = kAllDue,
                          Arena::Use use = Arena::Use::normal);
// A layer's heads of one sequence, that have something due or not.
struct Unsettled {
  std::span<HeadStream> heads;
  const LayerPlan* plan = nullptr;
  uint32_t most = kAllDue;      // archive blocks of each head
  const void* owner = nullptr;  // as attn::TakeWork's, where the backend may have the tails' rows as well; null: it has not
  bool settled = true;          // written; false: memory ran out, and what could not move stays in the better tier
};
// The same for the heads of many sequences together: what they are due to code at a time is one call of the backend, which `run`
// shares out. The streams are the same bits whatever `run` is and whoever else is there. Where memory is short they go on one by
// one, in their order, so that no block waits for room that the others only borrow. At most a block of each of as many heads as the
// backend codes at a time is on its way.
void settle(const StreamEnv& env, std::span<Unsettled> layers, const Executor& run, Arena::Use use = Arena::Use::normal) noexcept;
// And for those of one.
[[nodiscard]] bool settle(const StreamEnv& env, std::span<HeadStream> heads, const LayerPlan& plan, const Executor& run,
                          uint32_t most = kAllDue, Arena::Use use = Arena::Use::normal);

// Windowed layers: forgets what no query at `position` or later can see, slack apart.
void expire(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, uint32_t position);

// The oldest live position; `length` when there is none.
uint32_t oldest_position(const HeadStream& s, uint32_t length);
uint32_t live_rows(const HeadStream& s);
void live_positions(const HeadStream& s, std::vector<uint32_t>& out);
// Statistics of live tokens in the same order: out[i*signals + signal].
void live_stats(const StreamEnv& env, const HeadStream& s, std::vector<float>& out);

// Keeps live token i iff keep[i]; dead rows are forgotten, empty blocks freed, thinned-out neighbours merged (two into one, three
// into two). False: not enough memory for the lists eviction needs, nothing was changed.
[[nodiscard]] bool evict_rows(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, std::span<const uint8_t> keep);

// Forgets every position >= length. Sinks that a truncation cuts into go back to the tail, which prepare_truncate() makes room for.
[[nodiscard]] bool prepare_truncate(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, uint32_t length);
void truncate(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, uint32_t length);

// Decodes the row at `position` into key and value (either may be null). False: not there, or its block is in the cold file or on a
// device and cannot be read.
[[nodiscard]] bool read_row(const StreamEnv& env, const HeadStream& s, uint32_t position, float* key, float* value);

// A block as attention and whoever codes its rows anew read it. REQUIRES: it is resident, or away: then the view is too, and of no
// use but to the backend that has the bytes.
attn::BlockView view_of(const StreamEnv& env, const BlockRef& ref, uint32_t layer, uint32_t head);

// Views over everything live, for attention, valid under the sequence's lock (store/block_store.h says why no block is pinned one
// by one). Spilled blocks are in a list of their own. REQUIRES: no block is packed. stats[i] is the statistics of view i's first
// row (null where none are kept) and tier[i] its tier.
//
// What is collected once more costs little while it can be kept: the views of blocks stay as they are for as long as the blocks'
// version does, and only the tail's are made anew. When new blocks come, only what is behind the first change is.
struct StreamViews {
  std::vector<attn::BlockView> views;
  std::vector<float*> stats;
  std::vector<Tier> tiers;
  std::vector<const std::byte*> summaries;  // room for that of each view (summary.h), or null; empty: there are none
  std::vector<const BlockRef*> spilled;     // in order of position

  uint64_t version = 0;       // of the blocks whose views the first `settled` are; 0: not known
  uint64_t tail_version = 0;  // of the tail behind them (Tail::version()); 0: its rows do not follow one another
  uint32_t settled = 0;
  uint32_t settled_rows = 0;
  uint64_t before = 0;  // the version that was collected before this one, whose first `same` views are the same; 0: not known
  uint32_t same = 0;
  uint64_t sent_away = 0;  // the version whose blocks were looked through for those that can be a device's alone (away.h)
  bool away = false;       // a view has no bytes: a device has them alone
  bool lost = false;       // of a view's block nobody has the bytes any more

  // The views are no longer what was collected.
  void forget() { version = tail_version = before = 0, settled = settled_rows = same = 0; }
};
// Throws bad_alloc; `out` has no version then.
void collect_views(const StreamEnv& env, HeadStream& s, const CodecEntry& hot_codec, StreamViews& out);

// Over each archive block with rows at first..end-1 lies a better one from here on, its copy from the cold file bit for bit. The
// fresh blocks are made first, and lie where they belong once commit() is called, which needs no memory.
class Promotion {
 public:
  explicit Promotion(const StreamEnv& env) : env_(env) {}
  ~Promotion();
  Promotion(const Promotion&) = delete;
  Promotion& operator=(const Promotion&) = delete;

  // resource_exhausted, data_loss, io_error: as BlockStore::restore(). Throws bad_alloc.
  [[nodiscard]] Status add(HeadStream& s, uint32_t first, uint32_t end);
  void commit() noexcept;

  uint64_t blocks() const { return made_.size(); }
  uint64_t rows() const { return rows_; }
  uint64_t without_copy() const { return without_; }  // archive blocks in the range that stay as they are

 private:
  struct Made {
    BlockRef* ref;
    BlockHandle fresh;
  };
  const StreamEnv& env_;
  std::vector<Made> made_;
  uint64_t rows_ = 0, without_ = 0;
};
// What the payloads of all copies in the range take.
uint64_t promotion_bytes(const StreamEnv& env, const HeadStream& s, uint32_t first, uint32_t end);
// The blocks that were promoted give way to those they lie over. How many. Needs no memory.
uint64_t drop_promoted(const StreamEnv& env, HeadStream& s, uint32_t first, uint32_t end) noexcept;

// A copy that shares blocks and tail. False: no memory, `to` is empty.
[[nodiscard]] bool clone(const StreamEnv& env, const HeadStream& from, HeadStream& to);
void destroy(const StreamEnv& env, HeadStream& s);

// The arrays that hang on a BlockRef; used by snapshots too.
[[nodiscard]] bool allocate_ref_arrays(const StreamEnv& env, BlockRef& ref, uint32_t tokens, bool with_positions, bool with_stats,
                                       Arena::Use use);
void release_ref_arrays(const StreamEnv& env, BlockRef& ref, uint32_t tokens);
void release_ref(const StreamEnv& env, BlockRef& ref);

}  // namespace tierkv::tiers
