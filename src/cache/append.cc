// append.cc — rows come in: checked whole before anything is touched, written to the hot tail, and settled into the tiers.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/f16.h"
#include "base/guarded.h"
#include "base/status_macros.h"
#include "cache/impl.h"
#include "cache/pressure.h"
#include "cache/rows.h"

namespace tierkv {

using plan::LayerPlan;
using tiers::HeadStream;
using tiers::LayerState;
using tiers::Sequence;

namespace {

// Archive blocks that an append makes of one head: more than become due by it, so that what waited for tables catches up, and so
// few that no single token is kept waiting for all of them.
constexpr uint32_t kBacklog = 2, kCatchUp = 3;

// Tokens that wait in the warm tier at most, beyond its length, for queries that tell how much they matter.
constexpr uint32_t kMostUnseen = 1024;

// One append call on one layer.
struct Appending {
  Sequence& seq;
  uint32_t layer;
  const RowsView& keys;
  const RowsView& values;
  std::shared_ptr<const plan::Plans> plans;  // the same ones for the whole call
  LayerPlan plan;                            // as it begins
  bool evicting;
};

// Rows to take in one step: up to where the tail is due to graduate, so that it never grows past its bound, and never more than
// eviction can make room for beside the sinks and one token.
uint32_t step_size(const Appending& a, uint32_t tail_rows, uint32_t left, uint32_t most_tokens) {
  uint32_t step = left;
  if (const uint32_t bound = a.plan.tail_bound())
    step = std::min(step, tail_rows < bound ? bound - tail_rows : a.plan.first_block());
  if (a.evicting && most_tokens) step = std::min({step, std::max(1u, most_tokens / 2), most_tokens - a.plan.sinks - 1});
  return step;
}

// `most_tokens`: that eviction leaves a head; 0: any number. Where all of them are hot, the tail need never hold more.
bool reserve_tails(Appending& a, Arena& arena, uint32_t count, uint32_t most_tokens) {
  const uint32_t ring_rows = a.plan.window - 1 + a.plan.slack + count;
  const uint32_t bound = a.plan.tail_bound();
  const uint32_t most = a.plan.ring ? ring_rows : bound ? bound : most_tokens;
  for (HeadStream& s : a.seq.heads(a.layer)) {
    if (!s.tail.continue_at(arena, a.seq.layer(a.layer).length) || !s.tail.reserve(arena, count, most)) return false;
    if (a.plan.ring) s.tail.shrink(arena, ring_rows);
  }
  return true;
}

void write_rows(Appending& a, bool bf16, uint32_t first, uint32_t count) {
  const uint32_t position = a.seq.layer(a.layer).length;
  for (HeadStream& s : a.seq.heads(a.layer)) {
    for (uint32_t i = 0; i < count; ++i) {
      uint16_t* key;
      uint16_t* value;
      s.tail.push(position + i, key, value);
      cache::narrow_row(a.keys, first + i, s.head, bf16, key);
      cache::narrow_row(a.values, first + i, s.head, bf16, value);
    }
  }
}

Status no_room(const Arena& arena, uint32_t layer) {
  if (arena.limit() == 0) return error(StatusCode::resource_exhausted, "the system refused memory for layer ", layer);
  return error(StatusCode::resource_exhausted, "byte_budget of ", arena.limit(), " bytes is reached (", arena.mapped(),
               " mapped) and layer ", layer, " needs more; raise byte_budget, remove a sequence, or set eviction.policy");
}

}  // namespace

// Tokens that may wait in the warm tier for their queries: under a budget an eighth of it, at a byte an element.
static uint32_t most_unseen(const CacheConfig& c) {
  if (c.byte_budget == 0) return kMostUnseen;
  const uint64_t token = 2ull * c.num_layers * c.num_kv_heads * c.head_dim;
  return static_cast<uint32_t>(std::min<uint64_t>(kMostUnseen, c.byte_budget / 8 / token));
}

// The layer's as it is now.
static LayerPlan plan_of(const AdaptiveKVCache::Impl& impl, const plan::Plans& plans, const Sequence& seq, uint32_t layer) {
  const LayerState& state = seq.layer(layer);
  LayerPlan plan = plans.layer(layer, state.length);
  if (impl.places[layer] && plan.warm != 0 && plan.warm != kAll) {
    // A long piece of a prompt comes before its queries. Rows are not archived by it that no query could look at yet.
    plan.warm += std::min(most_unseen(impl.config), state.unobserved - std::min(state.unobserved, plan.hot));
  }
  return plan;
}

static bool spills(const AdaptiveKVCache::Impl& impl) { return impl.spill.kind != config::SpillMode::Kind::off; }

// With the archive that its rows ask for.
static bool settle_heads(AdaptiveKVCache::Impl& impl, const plan::Plans& plans, Sequence& seq, uint32_t layer, uint32_t most) {
  LayerPlan plan = plan_of(impl, plans, seq, layer);
  impl.choose_archive(seq, layer, plan);
  return tiers::settle(impl.env, seq.heads(layer), plan, impl.pool_executor, most);
}

// Where blocks can be spilled, tails that could not settle for want of memory do so before they would grow: the room that spilling
// makes is for blocks, and tails of eight times the bytes would take it all. False: blocks must be spilled.
static bool settle_full_tails(AdaptiveKVCache::Impl& impl, Appending& a) {
  const uint32_t bound = a.plan.tail_bound();
  if (!spills(impl) || bound == 0) return true;
  const auto full = [&](const HeadStream& s) { return s.tail.rows() >= bound; };
  const std::span<HeadStream> heads = a.seq.heads(a.layer);
  if (std::none_of(heads.begin(), heads.end(), full)) return true;
  LayerPlan plan = plan_of(impl, *a.plans, a.seq, a.layer);
  impl.choose_archive(a.seq, a.layer, plan);
  return std::all_of(heads.begin(), heads.end(),
                     [&](HeadStream& s) { return !full(s) || tiers::settle(impl.env, s, plan, kBacklog); });
}

// Rows that are in but had no room to settle do so after blocks were spilled, so that every row is where it would be with all of
// them in memory. Where that cannot be they stay in the better tier. REQUIRES: no lock is held.
static void settle_by_spilling(AdaptiveKVCache::Impl& impl, SeqId seq, uint32_t layer) {
  for (uint32_t attempt = 0; attempt < cache::kMostAttempts; ++attempt) {
    {
      const auto found = impl.find(seq);
      if (!found.ok()) return;
      Sequence& sequence = **found;
      std::lock_guard lock(sequence.mutex);
      if (!sequence.packed.empty()) return;
      if (settle_heads(impl, *impl.planner->now(), sequence, layer, kBacklog)) return;
    }
    if (!impl.make_room_by_spilling(seq, impl.largest_block)) return;
  }
}

static Status append_step(AdaptiveKVCache::Impl& impl, Appending& a, uint32_t first, uint32_t count) {
  LayerState& state = a.seq.layer(a.layer);
  if (a.evicting && !impl.make_room(a.seq, a.layer, count)) return no_room(*impl.arena, a.layer);
  if (!settle_full_tails(impl, a)) return no_room(*impl.arena, a.layer);
  const uint32_t most_tokens = a.evicting ? impl.layer_limit(a.layer) : 0;
  while (!reserve_tails(a, *impl.arena, count, most_tokens)) {
    // Nothing is given up while something waits for tables: with_pressure() ends that first.
    if (!impl.policy || impl.planner->waiting() || !impl.relieve(a.seq)) return no_room(*impl.arena, a.layer);
  }
  write_rows(a, impl.env.hot_bf16, first, count);
  state.length += count;
  state.unobserved += count;
  // From here on the tokens are in. Whatever cannot settle for want of memory stays in a better tier and is tried again.
  const uint32_t most = kBacklog + kCatchUp * count / impl.config.archive_block;
  const bool settled = settle_heads(impl, *a.plans, a.seq, a.layer, most);
  if (!settled && impl.policy && !a.plans->layer(a.layer, state.length).waiting) (void)impl.relieve(a.seq);
  return {};
}

namespace {

// Appends of several steps must come whole or not at all. Without a policy nothing is dropped on the way, so a copy that shares
// every block and tail is a full way back.
class Backup {
 public:
  Backup(const tiers::StreamEnv& env, Sequence& seq, uint32_t layer)
      : env_(env), seq_(seq), layer_(layer), state_(seq.layer(layer)), heads_(seq.kv_heads()) {}
  ~Backup() {
    for (HeadStream& s : heads_) tiers::destroy(env_, s);
  }
  bool take() {
    for (uint32_t h = 0; h < heads_.size(); ++h) {
      if (!tiers::clone(env_, seq_.heads(layer_)[h], heads_[h])) return false;
    }
    return true;
  }
  void restore() {
    for (uint32_t h = 0; h < heads_.size(); ++h) {
      HeadStream& now = seq_.heads(layer_)[h];
      now.blocks.swap(heads_[h].blocks);
      now.tail.swap(heads_[h].tail);
    }
    seq_.layer(layer_) = state_;
  }

 private:
  const tiers::StreamEnv& env_;
  Sequence& seq_;
  uint32_t layer_;
  LayerState state_;
  std::vector<HeadStream> heads_;
};

}  // namespace

Status AdaptiveKVCache::Impl::append(Sequence& seq, uint32_t layer, const RowsView& keys, const RowsView& values,
                                     uint64_t& needed) {
  LayerState& state = seq.layer(layer);
  const auto plans = planner->now();
  Appending a{seq, layer, keys, values, plans, plans->layer(layer, state.length), evicts(layer)};
  const uint32_t n = keys.tokens;
  if (n == 0) return {};
  const uint64_t length = static_cast<uint64_t>(state.length) + n;
  if (length >= tiers::kDeadPosition)
    return error(StatusCode::out_of_range, "a sequence holds at most ", tiers::kDeadPosition - 1, " positions");
  if (config.max_seq_len && !policy && length > config.max_seq_len) {
    return error(StatusCode::resource_exhausted, "max_seq_len is ", config.max_seq_len, " and layer ", layer, " would hold ",
                 length, " tokens; raise max_seq_len or set eviction.policy");
  }
  needed = 2ull * n * config.num_kv_heads * config.head_dim * sizeof(uint16_t);  // what is refused from here on is memory
  // What the first of the new tokens cannot see nobody will; the later ones' windows wait for the next append, because their
  // queries may all come at once after this one.
  if (a.plan.window) {
    for (HeadStream& s : seq.heads(layer)) tiers::expire(env, s, a.plan, state.length);
  }
  const uint32_t limit = a.evicting ? layer_limit(layer) : 0;
  const auto next_step = [&](uint32_t left) { return step_size(a, seq.heads(layer)[0].tail.rows(), left, limit); };
  const uint32_t first_step = next_step(n);
  if (first_step == n) return append_step(*this, a, 0, n);

  Backup backup(env, seq, layer);
  if (!policy && !backup.take()) return no_room(*arena, layer);
  const LayerState before = state;
  for (uint32_t done = 0; done < n;) {
    const uint32_t step = next_step(n - done);
    if (Status status = guarded("append rows", [&] { return append_step(*this, a, done, step); }); !status.ok()) {
      if (!policy) {
        backup.restore();
      } else {
        for (HeadStream& s : seq.heads(layer)) tiers::truncate(env, s, a.plan, before.length);
        state = before;
      }
      return status;
    }
    done += step;
  }
  return {};
}

// Rows in host memory whose shape was checked.
static Status append_here(AdaptiveKVCache::Impl& impl, SeqId seq, uint32_t layer, const RowsView& keys, const RowsView& values) {
  TIERKV_RETURN_IF_ERROR(cache::check_finite(keys, "keys", impl.env.hot_bf16));
  TIERKV_RETURN_IF_ERROR(cache::check_finite(values, "values", impl.env.hot_bf16));
  impl.keep_room_to_archive(keys.tokens);
  const Status status = cache::with_pressure(
      impl, seq,
      [&](uint64_t& needed) -> Status {
        TIERKV_ASSIGN_OR_RETURN(auto sequence, impl.find(seq));
        std::lock_guard lock(sequence->mutex);
        TIERKV_RETURN_IF_ERROR(impl.check_awake(seq, *sequence));
        const uint32_t position = sequence->layer(layer).length;
        TIERKV_RETURN_IF_ERROR(impl.append(*sequence, layer, keys, values, needed));
        if (impl.learning.active()) impl.learning.add_rows(seq, layer, position, keys, values);
        return {};
      },
      true);
  // The rows are in: what has no memory to settle them is no error of this call.
  if (status.ok() && spills(impl)) {
    (void)with_memory([&] {
      settle_by_spilling(impl, seq, layer);
      return true;
    });
  }
  return status;
}

static Status check_rows(const AdaptiveKVCache::Impl& impl, const AppendItem& item) {
  const CacheConfig& c = impl.config;
  TIERKV_RETURN_IF_ERROR(cache::check_shape(item.keys, "keys", c.num_kv_heads, c.head_dim));
  TIERKV_RETURN_IF_ERROR(cache::check_shape(item.values, "values", c.num_kv_heads, c.head_dim));
  if (item.keys.tokens != item.values.tokens) {
    return error(StatusCode::invalid_argument, "keys have ", item.keys.tokens, " tokens and values ", item.values.tokens);
  }
  TIERKV_RETURN_IF_ERROR(impl.env.backend->accepts(item.keys, "keys"));
  return impl.env.backend->accepts(item.values, "values");
}

namespace {

// Tokens of a sequence that a device's rows may have to be taken without a wait: steps of decoding.
constexpr uint32_t kMostTaken = 16;

// One item whose rows stay on the device that has the rows before them.
struct Taking {
  AppendItem* item = nullptr;
  std::shared_ptr<Sequence> sequence;
  std::unique_lock<Sequence::Mutex> lock;
  std::shared_ptr<const plan::Plans> plans;
};

}  // namespace

// Whether rows of a layer may be in the tails before their contents are in host memory: nobody here looks at them as they come.
static bool may_take(const AdaptiveKVCache::Impl& impl, uint32_t layer) {
  return impl.env.backend->remembers() && !impl.env.store->keeps_summaries() && !impl.policy && !impl.learning.active() &&
         !spills(impl) && impl.planner->shape(layer).window == 0;
}

// Rows without gaps, up to the newest token.
static bool plain_tails(Sequence& seq, uint32_t layer) {
  const std::span<const HeadStream> heads = seq.heads(layer);
  return std::all_of(heads.begin(), heads.end(), [&](const HeadStream& s) {
    tiers::Tail::Run runs[2];
    s.tail.runs(runs);
    return runs[0].rows != 0 && !runs[0].positions && runs[1].rows == 0 &&
           runs[0].first_position == heads[0].tail.first_position() &&
           runs[0].first_position + runs[0].rows == seq.layer(layer).length;
  });
}

// Room for the rows, and what a backend has to know to take them. False: they have to be appended in the ordinary way, which says
// what is wrong if something is.
static bool prepare_taking(AdaptiveKVCache::Impl& impl, uint32_t layer, Taking& taking, attn::TakeWork& work) {
  const AppendItem& item = *taking.item;
  const uint32_t n = item.keys.tokens;
  auto found = impl.find(item.seq);
  if (n == 0 || n > kMostTaken || !found.ok()) return false;
  taking.sequence = std::move(found).value();
  Sequence& seq = *taking.sequence;
  taking.lock = seq.mutex.as_is();
  seq.land(layer, 0);
  const LayerState& state = seq.layer(layer);
  const uint64_t length = static_cast<uint64_t>(state.length) + n;
  if (!impl.check_awake(item.seq, seq).ok() || length >= tiers::kDeadPosition || !plain_tails(seq, layer)) return false;
  if (impl.config.max_seq_len && length > impl.config.max_seq_len) return false;
  taking.plans = impl.planner->now();
  Appending a{seq, layer, item.keys, item.values, taking.plans, taking.plans->layer(layer, state.length), false};
  if (step_size(a, seq.heads(layer)[0].tail.rows(), n, 0) != n || !reserve_tails(a, *impl.arena, n, 0)) return false;
  seq.reserve_coming();
  work.keys = item.keys, work.values = item.values;
  work.owner = seq.kept_views(layer).data();
  for (const HeadStream& s : seq.heads(layer)) work.tail_versions.push_back(s.tail.version());
  work.tail_first = seq.heads(layer)[0].tail.first_position(), work.position = state.length;
  work.bf16 = impl.env.hot_bf16;
  return true;
}

// The rows are in, by position.
static void push_coming(uint32_t layer, Taking& taking, const attn::TakeWork& work,
                        const std::shared_ptr<const attn::Arrival>& arrival) noexcept {
  Sequence& seq = *taking.sequence;
  LayerState& state = seq.layer(layer);
  const uint32_t n = work.keys.tokens;
  for (HeadStream& s : seq.heads(layer)) {
    uint16_t *key, *value;
    for (uint32_t i = 0; i < n; ++i) s.tail.push(work.position + i, key, value);
  }
  state.length += n;
  state.unobserved += n;
  seq.expect({layer, work.position, n, work.rows, arrival});
}

// What is due to settle was appended long ago, and lands before.
static void settle_taken(AdaptiveKVCache::Impl& impl, uint32_t layer, Taking& taking, uint32_t n) {
  Sequence& seq = *taking.sequence;
  const uint32_t length = seq.layer(layer).length;
  const LayerPlan plan = taking.plans->layer(layer, length);
  if (plan.hot == kAll || seq.heads(layer)[0].tail.rows() < static_cast<uint64_t>(plan.hot) + plan.first_block()) return;
  seq.land(layer, length - std::min(length, plan.hot));
  (void)settle_heads(impl, *taking.plans, seq, layer, kBacklog + kCatchUp * n / impl.config.archive_block);
}

// Steps of decoding: their rows go from the caller's memory to where the device keeps a tail's, and nobody waits. Items whose rows
// are in, or were refused, leave the list.
static void append_there(AdaptiveKVCache::Impl& impl, uint32_t layer, std::vector<AppendItem*>& items) {
  if (!may_take(impl, layer)) return;
  std::vector<AppendItem*> sorted = items;
  std::sort(sorted.begin(), sorted.end(), [](const AppendItem* a, const AppendItem* b) { return a->seq < b->seq; });
  std::vector<Taking> takings;
  std::vector<attn::TakeWork> works;
  takings.reserve(items.size());
  works.reserve(items.size());
  for (const AppendItem* item : sorted) impl.keep_room_to_archive(item->keys.tokens);
  for (AppendItem* item : sorted) {
    takings.emplace_back().item = item;
    if (prepare_taking(impl, layer, takings.back(), works.emplace_back())) continue;
    takings.pop_back();
    works.pop_back();
  }
  if (works.empty()) return;
  std::vector<AppendItem*> done;
  done.reserve(works.size());
  const auto arrival = impl.env.backend->take(works);
  for (size_t i = 0; i < works.size(); ++i) {
    if (arrival.ok() && !works[i].taken) continue;
    takings[i].item->status = arrival.ok() ? Status() : arrival.status();
    if (arrival.ok()) push_coming(layer, takings[i], works[i], *arrival);
    done.push_back(takings[i].item);
  }
  for (size_t i = 0; arrival.ok() && i < works.size(); ++i) {
    if (!works[i].taken) continue;
    (void)with_memory([&] {
      settle_taken(impl, layer, takings[i], works[i].keys.tokens);
      return true;
    });
  }
  std::erase_if(items, [&](AppendItem* item) { return std::find(done.begin(), done.end(), item) != done.end(); });
}

// Those of a device's memory are taken there, or come down together.
static Status append_all(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<AppendItem> items) {
  std::vector<AppendItem*> fine;
  for (AppendItem& item : items) {
    item.status = check_rows(impl, item);
    if (item.status.ok()) fine.push_back(&item);
  }
  if (fine.empty()) return {};
  const RowsView& first = fine[0]->keys;
  for (const AppendItem* item : fine) {
    if (!cache::same_memory(item->keys, first) || !cache::same_memory(item->values, first))
      return error(StatusCode::invalid_argument, "the rows of one call are in one memory, a device's after one stream");
  }
  const bool there = first.place != MemoryPlace::host;
  if (there) append_there(impl, layer, fine);
  std::vector<RowsView> here;
  for (const AppendItem* item : fine) here.insert(here.end(), {item->keys, item->values});
  Result<std::shared_ptr<const void>> brought = std::shared_ptr<const void>();
  if (there && !fine.empty()) brought = impl.env.backend->bring(here);
  for (size_t i = 0; i < fine.size(); ++i) {
    AppendItem& item = *fine[i];
    item.status = brought.ok()
                      ? guarded("append rows", [&] { return append_here(impl, item.seq, layer, here[2 * i], here[2 * i + 1]); })
                      : brought.status();
  }
  return {};
}

Status AdaptiveKVCache::append(SeqId seq, uint32_t layer, const RowsView& keys, const RowsView& values) try {
  TIERKV_RETURN_IF_ERROR(impl_->check_layer(layer));
  AppendItem item{seq, keys, values, {}};
  TIERKV_RETURN_IF_ERROR(check_rows(*impl_, item));
  if (keys.place == MemoryPlace::host && values.place == MemoryPlace::host) return append_here(*impl_, seq, layer, keys, values);
  TIERKV_RETURN_IF_ERROR(append_all(*impl_, layer, {&item, 1}));
  return item.status;
}
TIERKV_NO_MEMORY("append rows")

static Status check_distinct(std::span<const AppendItem> items) {
  std::vector<SeqId> ids;
  for (const AppendItem& item : items) ids.push_back(item.seq);
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice == ids.end()) return {};
  return error(StatusCode::invalid_argument, "sequence ", *twice, " is in the batch twice");
}

Status AdaptiveKVCache::append_many(uint32_t layer, std::span<AppendItem> items) {
  const Status whole = guarded("append rows", [&]() -> Status {
    TIERKV_RETURN_IF_ERROR(impl_->check_layer(layer));
    TIERKV_RETURN_IF_ERROR(check_distinct(items));
    return append_all(*impl_, layer, items);
  });
  if (!whole.ok()) {
    for (AppendItem& item : items) item.status = whole;
  }
  for (const AppendItem& item : items) TIERKV_RETURN_IF_ERROR(item.status);
  return {};
}

}  // namespace tierkv
