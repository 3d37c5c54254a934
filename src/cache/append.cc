// append.cc — rows of one sequence come in: checked whole before anything is touched, written to the hot tail, and settled into the
// tiers.
#include <algorithm>

#include "base/guarded.h"
#include "base/status_macros.h"
#include "cache/append_many.h"
#include "cache/appending.h"
#include "cache/pressure.h"
#include "cache/rows.h"
#include "cache/step_graph.h"

namespace tierkv {

using plan::LayerPlan;
using tiers::HeadStream;
using tiers::LayerState;
using tiers::Sequence;

namespace cache {
namespace {

// Tokens that wait in the warm tier at most, beyond its length, for queries that tell how much they matter.
constexpr uint32_t kMostUnseen = 1024;

Status no_room(const AdaptiveKVCache::Impl& impl, uint32_t layer) {
  const Arena& arena = *impl.arena;
  if (arena.limit() == 0) return error(StatusCode::resource_exhausted, "the system refused memory for layer ", layer);
  return error(StatusCode::resource_exhausted, "byte_budget of ", arena.limit(), " bytes is reached (", arena.mapped(),
               " mapped) and layer ", layer, " needs more; raise byte_budget, ",
               spills(impl) ? "or remove a sequence" : "remove a sequence, or set eviction.policy");
}

// Tokens that may wait in the warm tier for their queries: under a budget an eighth of it, at a byte an element.
uint32_t most_unseen(const CacheConfig& c) {
  if (c.byte_budget == 0) return kMostUnseen;
  const uint64_t token = 2ull * c.num_layers * c.num_kv_heads * c.head_dim;
  return static_cast<uint32_t>(std::min<uint64_t>(kMostUnseen, c.byte_budget / 8 / token));
}

// The layer's as it is now, with the archive that its rows ask for.
LayerPlan plan_to_settle(AdaptiveKVCache::Impl& impl, const plan::Plans& plans, const Sequence& seq, uint32_t layer) noexcept {
  const LayerState& state = seq.layer(layer);
  LayerPlan plan = plans.layer(layer, state.length);
  if (impl.places[layer] && plan.warm != 0 && plan.warm != kAll) {
    // A long piece of a prompt comes before its queries. Rows are not archived by it that no query could look at yet.
    plan.warm += std::min(most_unseen(impl.config), state.unobserved - std::min(state.unobserved, plan.hot));
  }
  impl.choose_archive(seq, layer, plan);
  return plan;
}

// Rows that cannot be used are zeros here, and whatever they were where a backend has them.
const void* owner_of(const Sequence& seq, uint32_t layer) noexcept {
  return seq.spoiled().code == StatusCode::ok ? seq.tails_owner(layer) : nullptr;
}

bool settle_alone(AdaptiveKVCache::Impl& impl, const plan::Plans& plans, Sequence& seq, uint32_t layer, uint32_t most) noexcept {
  const LayerPlan plan = plan_to_settle(impl, plans, seq, layer);
  tiers::Unsettled unsettled{seq.heads(layer), &plan, most, owner_of(seq, layer)};
  tiers::settle(impl.env, {&unsettled, 1}, impl.pool_executor);
  return unsettled.settled;
}

}  // namespace

void settle_grown(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<Grown> grown) noexcept {
  const auto together = [&] {
    std::vector<LayerPlan> plans;
    std::vector<tiers::Unsettled> unsettled;
    plans.reserve(grown.size());
    unsettled.reserve(grown.size());
    for (Grown& g : grown) {
      plans.push_back(plan_to_settle(impl, *g.plans, *g.seq, layer));
      unsettled.push_back({g.seq->heads(layer), &plans.back(), g.most, owner_of(*g.seq, layer)});
    }
    tiers::settle(impl.env, unsettled, impl.pool_executor);
    for (size_t i = 0; i < grown.size(); ++i) grown[i].settled = unsettled[i].settled;
    return true;
  };
  if (grown.size() > 1 && with_memory(together)) return;
  for (Grown& g : grown) g.settled = settle_alone(impl, *g.plans, *g.seq, layer, g.most);
}

uint32_t step_size(const LayerPlan& plan, uint32_t tail_rows, uint32_t left, uint32_t most_tokens) {
  uint32_t step = left;
  if (const uint32_t bound = plan.tail_bound()) step = std::min(step, tail_rows < bound ? bound - tail_rows : plan.first_block());
  if (most_tokens) step = std::min({step, std::max(1u, most_tokens / 2), most_tokens - plan.sinks - 1});
  return step;
}

bool reserve_tails(Arena& arena, Sequence& seq, uint32_t layer, const LayerPlan& plan, uint32_t count, uint32_t most_tokens) {
  const uint32_t ring_rows = plan.window - 1 + plan.slack + count;
  const uint32_t bound = plan.tail_bound();
  const uint32_t most = plan.ring ? ring_rows : bound ? bound : most_tokens;
  for (HeadStream& s : seq.heads(layer)) {
    if (!s.tail.continue_at(arena, seq.layer(layer).length) || !s.tail.reserve(arena, count, most)) return false;
    if (plan.ring) s.tail.shrink(arena, ring_rows);
  }
  return true;
}

Backup::~Backup() {
  for (HeadStream& s : heads_) tiers::destroy(env_, s);
}

bool Backup::take() {
  for (uint32_t h = 0; h < heads_.size(); ++h) {
    if (!tiers::clone(env_, seq_.heads(layer_)[h], heads_[h])) return false;
  }
  return true;
}

void Backup::restore() {
  for (uint32_t h = 0; h < heads_.size(); ++h) {
    HeadStream& now = seq_.heads(layer_)[h];
    now.blocks.swap(heads_[h].blocks);
    now.tail.swap(heads_[h].tail);
  }
  seq_.layer(layer_) = state_;
}

Appending::Appending(AdaptiveKVCache::Impl& impl, Sequence& seq, uint32_t layer, const RowsView& keys, const RowsView& values,
                     std::shared_ptr<const plan::Plans> plans)
    : impl_(impl),
      seq_(seq),
      layer_(layer),
      keys_(keys),
      values_(values),
      plans_(std::move(plans)),
      plan_(plans_->layer(layer, seq.layer(layer).length)),
      evicting_(impl.evicts(layer)),
      before_(seq.layer(layer)) {}

Status Appending::begin(uint64_t& needed) {
  const CacheConfig& config = impl_.config;
  const uint32_t n = keys_.tokens;
  if (n == 0) return {};
  const uint64_t length = static_cast<uint64_t>(before_.length) + n;
  if (length >= tiers::kDeadPosition)
    return error(StatusCode::out_of_range, "a sequence holds at most ", tiers::kDeadPosition - 1, " positions");
  if (config.max_seq_len && !impl_.policy && length > config.max_seq_len) {
    return error(StatusCode::resource_exhausted, "max_seq_len is ", config.max_seq_len, " and layer ", layer_, " would hold ",
                 length, " tokens; raise max_seq_len or set eviction.policy");
  }
  needed = 2ull * n * config.num_kv_heads * config.head_dim * sizeof(uint16_t);  // what is refused from here on is memory
  // What the first of the new tokens cannot see nobody will; the later ones' windows wait for the next append, because their
  // queries may all come at once after this one.
  if (plan_.window) {
    for (HeadStream& s : seq_.heads(layer_)) tiers::expire(impl_.env, s, plan_, before_.length);
  }
  limit_ = evicting_ ? impl_.layer_limit(layer_) : 0;
  if (impl_.policy || step_size(plan_, seq_.heads(layer_)[0].tail.rows(), n, limit_) == n) return {};
  backup_.emplace(impl_.env, seq_, layer_);
  if (!backup_->take()) return no_room(impl_, layer_);
  return {};
}

// Where blocks can be spilled, tails that could not settle for want of memory do so before they would grow: the room that spilling
// makes is for blocks, and tails of eight times the bytes would take it all. False: blocks must be spilled.
bool Appending::settle_full_tails() {
  const uint32_t bound = plan_.tail_bound();
  if (!spills(impl_) || bound == 0) return true;
  const auto full = [&](const HeadStream& s) { return s.tail.rows() >= bound; };
  const std::span<HeadStream> heads = seq_.heads(layer_);
  if (std::none_of(heads.begin(), heads.end(), full)) return true;
  const LayerPlan plan = plan_to_settle(impl_, *plans_, seq_, layer_);
  return std::all_of(heads.begin(), heads.end(),
                     [&](HeadStream& s) { return !full(s) || tiers::settle(impl_.env, s, plan, kBacklog); });
}

void Appending::write_rows(uint32_t count) {
  const uint32_t position = seq_.layer(layer_).length;
  for (HeadStream& s : seq_.heads(layer_)) {
    for (uint32_t i = 0; i < count; ++i) {
      uint16_t* key;
      uint16_t* value;
      s.tail.push(position + i, key, value);
      narrow_row(keys_, done_ + i, s.head, impl_.env.hot_bf16, key);
      narrow_row(values_, done_ + i, s.head, impl_.env.hot_bf16, value);
    }
  }
}

Status Appending::add_rows(uint32_t count) {
  if (evicting_ && !impl_.make_room(seq_, layer_, count)) return no_room(impl_, layer_);
  if (!settle_full_tails()) return no_room(impl_, layer_);
  while (!reserve_tails(*impl_.arena, seq_, layer_, plan_, count, limit_)) {
    // Nothing is given up while something waits for tables: with_pressure() ends that first.
    if (!impl_.policy || impl_.planner->waiting() || !impl_.relieve(seq_)) return no_room(impl_, layer_);
  }
  write_rows(count);
  LayerState& state = seq_.layer(layer_);
  state.length += count;
  state.unobserved += count;
  return {};
}

Status Appending::step() {
  const uint32_t count = step_size(plan_, seq_.heads(layer_)[0].tail.rows(), keys_.tokens - done_, limit_);
  Status status = guarded("append rows", [&] { return add_rows(count); });
  if (status.ok()) done_ += count, last_step_ = count;
  else take_back();
  return status;
}

// From a step on its tokens are in. Whatever cannot settle for want of memory stays in a better tier and is tried again.
void Appending::settled(bool all) {
  if (all || !impl_.policy || plans_->layer(layer_, seq_.layer(layer_).length).waiting) return;
  (void)with_memory([&] { return impl_.relieve(seq_); });
}

void Appending::take_back() {
  if (done_ == 0) return;
  done_ = 0;
  if (backup_) return backup_->restore();
  for (HeadStream& s : seq_.heads(layer_)) tiers::truncate(impl_.env, s, plan_, before_.length);
  seq_.layer(layer_) = before_;
}

namespace {

// Rows that are in but had no room to settle do so after blocks were spilled, so that every row is where it would be with all of
// them in memory. Where that cannot be they stay in the better tier. REQUIRES: no lock is held.
void settle_by_spilling(AdaptiveKVCache::Impl& impl, SeqId seq, uint32_t layer) {
  for (uint32_t attempt = 0; attempt < kMostAttempts; ++attempt) {
    {
      const auto found = impl.find(seq);
      if (!found.ok()) return;
      Sequence& sequence = **found;
      std::lock_guard lock(sequence.mutex);
      if (!sequence.packed.empty()) return;
      if (settle_alone(impl, *impl.planner->now(), sequence, layer, kBacklog)) return;
    }
    Status file;
    if (!impl.make_room_by_spilling(seq, impl.largest_block, file)) return;
  }
}

// REQUIRES: the sequence's lock is held.
Status append_locked(AdaptiveKVCache::Impl& impl, Sequence& seq, uint32_t layer, const RowsView& keys, const RowsView& values,
                     uint64_t& needed) {
  Appending rows(impl, seq, layer, keys, values, impl.planner->now());
  TIERKV_RETURN_IF_ERROR(rows.begin(needed));
  while (!rows.done()) {
    TIERKV_RETURN_IF_ERROR(rows.step());
    Grown grown = rows.grown();
    settle_grown(impl, layer, {&grown, 1});
    rows.settled(grown.settled);
  }
  return {};
}

}  // namespace

Status check_finite_rows(const AdaptiveKVCache::Impl& impl, const RowsView& keys, const RowsView& values) {
  TIERKV_RETURN_IF_ERROR(check_finite(keys, "keys", impl.env.hot_bf16));
  return check_finite(values, "values", impl.env.hot_bf16);
}

Status append_here(AdaptiveKVCache::Impl& impl, SeqId seq, uint32_t layer, const RowsView& keys, const RowsView& values) {
  impl.keep_room_to_archive(keys.tokens);
  const Status status = with_pressure(
      impl, seq,
      [&](uint64_t& needed) -> Status {
        TIERKV_ASSIGN_OR_RETURN(auto sequence, impl.find(seq));
        std::lock_guard lock(sequence->mutex);
        TIERKV_RETURN_IF_ERROR(impl.check_awake(seq, *sequence));
        const uint32_t position = sequence->layer(layer).length;
        TIERKV_RETURN_IF_ERROR(append_locked(impl, *sequence, layer, keys, values, needed));
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

Status check_rows(const AdaptiveKVCache::Impl& impl, const AppendItem& item) {
  const CacheConfig& c = impl.config;
  TIERKV_RETURN_IF_ERROR(check_shape(item.keys, "keys", c.num_kv_heads, c.head_dim));
  TIERKV_RETURN_IF_ERROR(check_shape(item.values, "values", c.num_kv_heads, c.head_dim));
  if (item.keys.tokens != item.values.tokens) {
    return error(StatusCode::invalid_argument, "keys have ", item.keys.tokens, " tokens and values ", item.values.tokens);
  }
  TIERKV_RETURN_IF_ERROR(impl.env.backend->accepts(item.keys, "keys"));
  return impl.env.backend->accepts(item.values, "values");
}

}  // namespace cache

Status AdaptiveKVCache::append(SeqId seq, uint32_t layer, const RowsView& keys, const RowsView& values) try {
  TIERKV_RETURN_IF_ERROR(impl_->check_layer(layer));
  AppendItem item{seq, keys, values, {}};
  TIERKV_RETURN_IF_ERROR(cache::check_rows(*impl_, item));
  if (keys.place == MemoryPlace::host && values.place == MemoryPlace::host) {
    TIERKV_RETURN_IF_ERROR(cache::check_finite_rows(*impl_, keys, values));
    return cache::append_here(*impl_, seq, layer, keys, values);
  }
  if (const auto recorded = cache::record_append(*impl_, layer, {&item, 1})) return *recorded;
  TIERKV_RETURN_IF_ERROR(cache::append_all(*impl_, layer, {&item, 1}));
  return item.status;
}
TIERKV_NO_MEMORY("append rows")

}  // namespace tierkv
