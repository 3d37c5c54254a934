// append_there.cc — steps of decoding whose rows are in a device's memory: they go to where the device keeps a tail's, the tail
// gets their positions, and their contents when they land (Coming in tiers/sequence.h).
#include <algorithm>
#include <mutex>
#include <utility>

#include "base/guarded.h"
#include "cache/append_many.h"
#include "cache/appending.h"

namespace tierkv::cache {

using plan::LayerPlan;
using tiers::HeadStream;
using tiers::LayerState;
using tiers::Sequence;

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

// Whether rows of a layer may be in the tails before their contents are in host memory: nobody here looks at them as they come.
bool may_take(const AdaptiveKVCache::Impl& impl, uint32_t layer) {
  return impl.env.backend->remembers() && !impl.env.store->keeps_summaries() && !impl.policy && !impl.learning.active() &&
         !spills(impl) && impl.planner->shape(layer).window == 0;
}

// Rows without gaps, up to the newest token.
bool plain_tails(Sequence& seq, uint32_t layer) {
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
bool prepare_taking(AdaptiveKVCache::Impl& impl, uint32_t layer, Taking& taking, attn::TakeWork& work) {
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
  const LayerPlan plan = taking.plans->layer(layer, state.length);
  if (step_size(plan, seq.heads(layer)[0].tail.rows(), n, 0) != n) return false;
  if (!reserve_tails(*impl.arena, seq, layer, plan, n, 0)) return false;
  seq.reserve_coming();
  work.keys = item.keys, work.values = item.values;
  work.owner = seq.kept_views(layer).data();
  for (const HeadStream& s : seq.heads(layer)) work.tail_versions.push_back(s.tail.version());
  work.tail_first = seq.heads(layer)[0].tail.first_position(), work.position = state.length;
  work.bf16 = impl.env.hot_bf16;
  return true;
}

// The rows are in, by position.
void push_coming(uint32_t layer, Taking& taking, const attn::TakeWork& work,
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

// Whether warm rows of a head are due for the archive: what waited for tables is, from one moment to the next.
bool has_backlog(const HeadStream& s, const LayerPlan& plan) noexcept {
  return plan.warm != 0 && plan.warm != kAll && !plan.waiting &&
         s.warm().rows >= static_cast<uint64_t>(plan.warm) + plan.archive_codec->tokens;
}

// Whether something of it is due to settle. That was appended long ago, and lands before.
bool lands_what_is_due(uint32_t layer, const Taking& taking) noexcept {
  Sequence& seq = *taking.sequence;
  const uint32_t length = seq.layer(layer).length;
  const LayerPlan plan = taking.plans->layer(layer, length);
  if (plan.hot == kAll) return false;
  const HeadStream& first = std::as_const(seq).heads(layer)[0];
  if (first.tail.rows() < static_cast<uint64_t>(plan.hot) + plan.first_block() && !has_backlog(first, plan)) return false;
  seq.land(layer, length - std::min(length, plan.hot));
  return true;
}

// The rows of those that were taken are in, and what is due of them settles together. REQUIRES: room for all in `grown`.
void push_taken(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<Taking> takings, std::span<const attn::TakeWork> works,
                const std::shared_ptr<const attn::Arrival>& arrival, std::vector<Grown>& grown) noexcept {
  for (size_t i = 0; i < works.size(); ++i) {
    if (works[i].taken) push_coming(layer, takings[i], works[i], arrival);
  }
  for (size_t i = 0; i < works.size(); ++i) {
    if (!works[i].taken || !lands_what_is_due(layer, takings[i])) continue;
    grown.push_back({takings[i].sequence.get(), takings[i].plans.get(), most_blocks(impl.config, works[i].keys.tokens)});
  }
  settle_grown(impl, layer, grown);
}

}  // namespace

void append_there(AdaptiveKVCache::Impl& impl, uint32_t layer, std::vector<AppendItem*>& items, bool attended) {
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
  std::vector<Grown> grown;
  done.reserve(works.size());
  grown.reserve(works.size());
  const auto arrival = impl.env.backend->take(works, attended);
  for (size_t i = 0; i < works.size(); ++i) {
    if (arrival.ok() && !works[i].taken) continue;
    takings[i].item->status = arrival.ok() ? Status() : arrival.status();
    done.push_back(takings[i].item);
  }
  if (arrival.ok()) push_taken(impl, layer, takings, works, *arrival, grown);
  std::erase_if(items, [&](AppendItem* item) { return std::find(done.begin(), done.end(), item) != done.end(); });
}

Status check_step_append(const AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<const AppendItem> items) {
  if (!may_take(impl, layer)) {
    return error(StatusCode::unsupported, "layer ", layer,
                 " cannot be appended to in a graph: it has a window, or the cache evicts, spills, skips or learns a model");
  }
  for (const AppendItem& item : items) {
    if (item.keys.tokens == 0 || item.keys.tokens > kMostTaken) {
      return error(StatusCode::unsupported, "a step's graph appends 1 to ", kMostTaken, " tokens to a sequence, not ",
                   item.keys.tokens, "; append prompts without it");
    }
  }
  return {};
}

Result<bool> append_in_step(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<AppendItem> items, attn::StepCalls& step,
                            uint32_t call) {
  TIERKV_RETURN_IF_ERROR(check_step_append(impl, layer, items));
  std::vector<AppendItem*> sorted;
  for (AppendItem& item : items) sorted.push_back(&item);
  std::sort(sorted.begin(), sorted.end(), [](const AppendItem* a, const AppendItem* b) { return a->seq < b->seq; });
  std::vector<Taking> takings(items.size());
  std::vector<attn::TakeWork> works(items.size());
  std::vector<Grown> grown;
  grown.reserve(items.size());
  for (const AppendItem* item : sorted) impl.keep_room_to_archive(item->keys.tokens);
  for (size_t i = 0; i < sorted.size(); ++i) {
    takings[i].item = sorted[i], works[i].step = &step, works[i].call = call;
    if (prepare_taking(impl, layer, takings[i], works[i])) {
      const LayerPlan plan = takings[i].plans->layer(layer, works[i].position);
      if (plan.hot >= works[i].keys.tokens) continue;
      return error(StatusCode::unsupported, "layer ", layer, " keeps ", plan.hot,
                   " hot tokens, and a step in a graph leaves its own there; set hot higher");
    }
    return error(
        StatusCode::failed_precondition, "sequence ", sorted[i]->seq, " cannot be appended to in a graph now, layer ", layer,
        ": it has no hot rows there, rows are missing, max_seq_len is reached, or memory is short; append without the graph, "
        "which says what is wrong");
  }
  TIERKV_ASSIGN_OR_RETURN(const std::shared_ptr<const attn::Arrival> arrival, impl.env.backend->take(works));
  if (!works[0].taken) return false;
  push_taken(impl, layer, takings, works, arrival, grown);
  return true;
}

}  // namespace tierkv::cache
