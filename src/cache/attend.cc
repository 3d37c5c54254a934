// attend.cc — queries of one sequence or of many in, one exact softmax over every tier of each, outputs out: checks, locks and
// views here, the work itself in the backend (attn/backend.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "attn/backend.h"
#include "attn/rows.h"
#include "base/guarded.h"
#include "base/loan.h"
#include "base/status_macros.h"
#include "cache/attend_spilled.h"
#include "cache/impl.h"
#include "cache/look_back.h"
#include "cache/observe.h"
#include "cache/rows.h"
#include "cache/skip_blocks.h"
#include "cache/step_graph.h"
#include "tiers/away.h"

namespace tierkv {

using cache::StreamObserver;
using tiers::LayerState;
using tiers::Sequence;
using tiers::StreamViews;

namespace {

// From this many rows on the time they take counts for more than the last digits of the products (quant::Workspace::coarse).
constexpr uint32_t kCoarseRows = 8192;

// From this many sums on, threads share in folding them into the tokens' statistics.
constexpr size_t kManySums = 1u << 15;

// What observers are told, kept from call to call.
struct Sums : std::vector<float> {
  void trim() noexcept {
    if (size() > (size_t{1} << 22)) std::vector<float>().swap(*this);
  }
};

// What one item holds while the backend works on it.
struct Held {
  AttentionItem* item = nullptr;
  std::shared_ptr<Sequence> sequence;
  std::unique_lock<Sequence::Mutex> lock;
  std::vector<uint32_t> positions;  // of each query
  std::span<StreamViews> views;     // of each KV head: the sequence's own where they are kept, or
  std::vector<StreamViews> own_views;
  std::vector<StreamObserver> observers;
  std::vector<BlockMass> blocks;  // what they received, where somebody wants to know
  std::vector<float> lse;         // of every query and head, where learning or spilled blocks want it
  bool learns = false;            // learning does
  bool spilled = false;           // some of its blocks are in the cold file
  bool looks_back = false;        // it says what archived blocks receive
  // Where somebody here reads queries and results that the caller has in a device's memory: they come down and go up again.
  RowsView queries;
  std::shared_ptr<const void> brought;
  std::vector<float> out;  // also where the caller wants 16-bit results in host memory
};

Status query_positions(const AttentionItem& item, uint32_t length, std::vector<uint32_t>& out) {
  const uint32_t count = item.queries.tokens;
  if (item.first_position < 0 && count > length) {
    return error(StatusCode::out_of_range, count, " queries for a sequence of ", length, " tokens; give first_position");
  }
  const int64_t first = item.first_position < 0 ? static_cast<int64_t>(length) - count : item.first_position;
  if (first > static_cast<int64_t>(tiers::kDeadPosition) - count) {
    return error(StatusCode::out_of_range, "first_position ", first, " is out of range: positions end at ",
                 tiers::kDeadPosition - 1);
  }
  out.reserve(count);
  for (uint32_t i = 0; i < count; ++i) out.push_back(static_cast<uint32_t>(first) + i);
  return {};
}

Status check_options(const AttentionOptions& o, uint32_t query_heads) {
  if (!std::isfinite(o.scale) || o.scale < 0.0f)
    return error(StatusCode::invalid_argument, "scale must be finite and not negative");
  if (!std::isfinite(o.softcap) || o.softcap < 0.0f)
    return error(StatusCode::invalid_argument, "softcap must be finite and not negative");
  for (uint32_t h = 0; o.sink_logits && h < query_heads; ++h) {
    if (!std::isfinite(o.sink_logits[h]))
      return error(StatusCode::invalid_argument, "sink_logits of query head ", h, " is not finite");
  }
  return {};
}

// One call over the items of one layer.
class Attending {
 public:
  Attending(AdaptiveKVCache::Impl& impl, uint32_t layer, const AttentionOptions& options, attn::StepCalls* step = nullptr,
            uint32_t call = 0)
      : impl_(impl), config_(impl.config), layer_(layer), options_(options), step_(step), call_(call) {}

  Status check() {
    TIERKV_RETURN_IF_ERROR(impl_.check_layer(layer_));
    TIERKV_RETURN_IF_ERROR(check_options(options_, config_.query_heads()));
    params_.head_dim = config_.head_dim;
    params_.scale = options_.scale > 0.0f ? options_.scale : 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
    params_.softcap = options_.softcap;
    params_.causal = options_.causal;
    params_.window = impl_.planner->shape(layer_).window;
    learn_ = options_.observe && impl_.evicts(layer_) && impl_.env.signals;
    place_ = options_.observe && options_.causal && !learn_ && impl_.places[layer_];
    return {};
  }

  // Checks the items, locks the sequences of those that can be served and collects their views. Fails as a whole when a sequence is
  // there twice.
  Status hold(std::span<AttentionItem> items) {
    held_.reserve(items.size());
    works_.reserve(items.size());
    for (AttentionItem& item : items) held_.emplace_back().item = &item;
    TIERKV_RETURN_IF_ERROR(sort_by_id());
    for (const Held& held : held_) {
      const RowsView& one = held.item->queries;
      if (!cache::same_memory(one, held_.front().item->queries))
        return error(StatusCode::invalid_argument, "the queries of one call are in one memory, a device's after one stream");
    }
    std::erase_if(held_, [&](const Held& held) {
      held.item->status = check_item(*held.item);
      return !held.item->status.ok() || held.item->queries.tokens == 0;
    });
    lock_all();
    size_t kept = 0;
    for (size_t i = 0; i < held_.size(); ++i) {
      AttentionItem& item = *held_[i].item;
      item.status = collect(held_[i]);
      if (!item.status.ok()) continue;
      if (kept != i) std::swap(held_[kept], held_[i]);
      ++kept;
    }
    held_.resize(kept);
    return {};
  }

  void work() {
    for (Held& held : held_) {
      held.learns = wants_lse(held);
      held.looks_back = options_.observe && options_.causal && !held.spilled &&
                        cache::looks_back(impl_, *held.sequence, layer_, held.item->queries.tokens);
    }
    std::erase_if(held_, [&](Held& held) {
      held.item->status = come_down(held);
      return !held.item->status.ok();
    });
    skip();
    for (Held& held : held_) observe(held);
    place_sums();
    attend();
    for (size_t i = 0; i < held_.size(); ++i) finish(held_[i], works_[i]);
    for (Held& held : held_) send_away(held);
  }

 private:
  Status check_item(const AttentionItem& item) const {
    TIERKV_RETURN_IF_ERROR(cache::check_shape(item.queries, "queries", config_.query_heads(), config_.head_dim));
    TIERKV_RETURN_IF_ERROR(impl_.env.backend->accepts(item.queries, "queries"));
    if (item.queries.place == MemoryPlace::host) TIERKV_RETURN_IF_ERROR(cache::check_queries(item.queries, params_.scale));
    if (item.queries.tokens != 0 && !item.out) return error(StatusCode::invalid_argument, "attention needs a place for its output");
    return {};
  }

  // Every call that holds several sequences takes their locks in the order of ids, so that no two can wait for each other.
  Status sort_by_id() {
    std::sort(held_.begin(), held_.end(), [](const Held& a, const Held& b) { return a.item->seq < b.item->seq; });
    for (size_t i = 1; i < held_.size(); ++i) {
      if (held_[i].item->seq == held_[i - 1].item->seq)
        return error(StatusCode::invalid_argument, "sequence ", held_[i].item->seq, " is in the batch twice");
    }
    return {};
  }

  void lock_all() {
    for (Held& held : held_) {
      auto found = impl_.find(held.item->seq);
      if (!found.ok()) {
        held.item->status = found.status();
        continue;
      }
      held.sequence = std::move(found).value();
      // A backend that has hot rows says when it has not.
      const bool there = held.item->queries.place == MemoryPlace::device && keeps_views();
      held.lock = there ? held.sequence->mutex.as_is() : std::unique_lock(held.sequence->mutex);
    }
  }

  Status collect(Held& held) {
    if (!held.sequence) return held.item->status;
    TIERKV_RETURN_IF_ERROR(impl_.check_awake(held.item->seq, *held.sequence));
    TIERKV_RETURN_IF_ERROR(query_positions(*held.item, held.sequence->layer(layer_).length, held.positions));
    if (keeps_views()) {
      held.views = held.sequence->kept_views(layer_);
    } else {
      held.own_views.resize(config_.num_kv_heads);
      held.views = held.own_views;
    }
    for (uint32_t h = 0; h < config_.num_kv_heads; ++h) {
      tiers::collect_views(impl_.env, held.sequence->heads(layer_)[h], impl_.planner->hot_codec(), held.views[h]);
      held.spilled |= !held.views[h].spilled.empty();
    }
    if (std::any_of(held.views.begin(), held.views.end(), [](const StreamViews& head) { return head.lost; })) {
      return error(StatusCode::data_loss, "sequence ", held.item->seq,
                   " has blocks that a device had alone when it failed or was given up: they are lost; remove the sequence");
    }
    if (held.spilled && held.item->mass) {
      return error(StatusCode::failed_precondition, "sequence ", held.item->seq,
                   " has blocks in the cold file (spill): there is no mass report of it");
    }
    return {};
  }

  // Summaries are there for calls that take blocks out of their views.
  bool keeps_views() const { return impl_.env.backend->remembers() && !impl_.env.store->keeps_summaries(); }

  // Somebody wants to know where the mass went: the policy, the archive (which rows it will keep better is decided by what they
  // receive until then), or the caller.
  void observe(Held& held) {
    MassReport* mass = held.item->mass;
    if (!learn_ && !place_ && !mass && !held.looks_back) return;
    const LayerState& state = held.sequence->layer(layer_);
    const bool seldom = learn_ && impl_.only_totals && !mass && !held.looks_back && held.positions.size() == 1 &&
                        state.length >= cache::kLongTotals;
    if (seldom && !cache::hears_totals(held.positions[0], layer_)) return;
    if (mass) {
      mass->blocks.clear();
      mass->tokens.assign(mass->want_tokens ? static_cast<size_t>(config_.num_kv_heads) * state.length : 0, 0.0f);
    }
    if (mass || held.looks_back) {  // so that nothing can fail once the policy has learned
      size_t blocks = 0;
      for (const StreamViews& head : held.views) blocks += head.views.size();
      held.blocks.reserve(blocks);
    }
    cache::ObserveSettings settings;
    settings.signals = learn_ || place_ ? impl_.env.signals : 0;
    settings.signal_slot = impl_.signal_slot;
    settings.wanted = learn_ ? ~0u : 1u << policy::kMassTotal;
    settings.observation = config_.eviction.observation;
    settings.window_queries = state.window_queries;
    settings.group = config_.query_heads() / config_.num_kv_heads;
    settings.recent_only = !learn_ && !mass && !held.looks_back;
    settings.blocks = held.looks_back;
    settings.total_times = seldom ? 2.0f : 1.0f;
    held.observers.reserve(config_.num_kv_heads);
    for (uint32_t h = 0; h < config_.num_kv_heads; ++h) {
      held.observers.emplace_back(settings, held.sequence->heads(layer_)[h], held.views[h], held.positions, mass, state.length);
    }
  }

  // Archive blocks that a decoding step does not need leave its views. Who reports mass, or learns a model, sees all of them.
  void skip() {
    struct Task {
      Held* held;
      uint32_t head;
    };
    std::vector<Task> tasks;
    for (Held& held : held_) {
      if (held.item->mass || held.learns || held.looks_back || !cache::may_skip(impl_, skip_query(held))) continue;
      for (uint32_t h = 0; h < config_.num_kv_heads; ++h) tasks.push_back({&held, h});
    }
    if (tasks.empty()) return;
    executor()(static_cast<uint32_t>(tasks.size()), [&](uint32_t i) {
      Held& held = *tasks[i].held;
      cache::skip_blocks(impl_, skip_query(held), tasks[i].head, held.views[tasks[i].head]);
    });
  }

  cache::SkipQuery skip_query(const Held& held) const {
    return {held.queries, held.positions.data(), options_.sink_logits, params_};
  }

  void place_sums() {
    size_t sums = 0;
    for (const Held& held : held_) {
      for (const StreamObserver& observer : held.observers) sums += observer.num_sums();
    }
    if (sums > sums_->size()) sums_->resize(sums);
    float* at = sums_->data();
    for (Held& held : held_) {
      for (StreamObserver& observer : held.observers) {
        observer.put_sums_at(at);
        at += observer.num_sums();
      }
    }
  }

  void fold(Held& held) {
    if (held.observers.empty()) return;
    size_t sums = 0;
    for (const StreamObserver& observer : held.observers) sums += observer.num_sums();
    const auto fold_head = [&](uint32_t h) { held.observers[h].fold(); };
    if (sums >= kManySums && held.observers.size() > 1) {
      executor()(static_cast<uint32_t>(held.observers.size()), fold_head);
    } else {
      for (StreamObserver& observer : held.observers) observer.fold();
    }
  }

  // Rows that a query can look at, of the head that has most: what a window hides or a policy gave up costs nothing and counts for
  // nothing.
  uint32_t visible_rows(const Held& held) const {
    uint32_t most = 0;
    for (const StreamViews& head : held.views) {
      uint32_t rows = head.settled_rows;
      for (size_t v = head.settled; v < head.views.size(); ++v) rows += head.views[v].rows;
      for (const tiers::BlockRef* ref : head.spilled) rows += ref->rows;
      most = std::max(most, rows);
    }
    return params_.window ? std::min(most, params_.window) : most;
  }

  Status land(Held& held) const {
    held.sequence->land();
    return impl_.check_awake(held.item->seq, *held.sequence);
  }

  Status come_down(Held& held) {
    held.queries = held.item->queries;
    const bool here = held.queries.place == MemoryPlace::host;
    if (here && held.item->out_type != DType::f32) make_results(held);
    if (!held.learns && !held.spilled) return {};
    TIERKV_RETURN_IF_ERROR(land(held));
    if (here) return {};
    TIERKV_ASSIGN_OR_RETURN(held.brought, impl_.env.backend->bring({&held.queries, 1}));
    make_results(held);
    return cache::check_queries(held.queries, params_.scale);
  }
  void make_results(Held& held) const {
    held.out.resize(static_cast<size_t>(held.queries.tokens) * config_.query_heads() * config_.head_dim);
  }

  void attend() {
    for (Held& held : held_) {
      attn::AttendWork& work = works_.emplace_back();
      work.heads.reserve(held.views.size());
      for (const StreamViews& head : held.views) work.heads.emplace_back(head.views);
      if (keeps_views()) {
        work.settled.reserve(held.views.size());
        for (const StreamViews& head : held.views)
          work.settled.push_back({&head, head.version, head.settled, head.tail_version, head.before, head.same});
      }
      if (!held.spilled) work.mass = wanted_mass(held);
      work.queries = held.queries;
      work.positions = held.positions.data();
      const bool own = !held.out.empty();
      work.out = own ? held.out.data() : held.item->out, work.out_type = own ? DType::f32 : held.item->out_type;
      work.sink_logits = options_.sink_logits;
      work.params = params_;
      work.step = step_, work.call = call_;
      if (held.sequence->expects(layer_)) work.land = [this, &held] { return land(held); };
      work.params.coarse = visible_rows(held) >= kCoarseRows;
      if (held.spilled) held.lse.resize(static_cast<size_t>(held.item->queries.tokens) * config_.query_heads());
      if (held.learns || held.spilled) work.lse = held.lse.data();
    }
    impl_.env.backend->attend(works_, executor());
    for (size_t i = 0; i < held_.size(); ++i) {
      if (!held_[i].spilled || !works_[i].status.ok()) continue;
      works_[i].status = join_spilled(held_[i], works_[i]);
    }
  }

  Status join_spilled(Held& held, attn::AttendWork& work) const {
    TIERKV_RETURN_IF_ERROR(cache::join_spilled(impl_, layer_, held.views, work, executor()));
    if (held.observers.empty()) return {};
    return cache::weigh_resident(impl_, wanted_mass(held), work, executor());
  }

  static std::vector<attn::HeadMass> wanted_mass(Held& held) {
    std::vector<attn::HeadMass> wanted;
    wanted.reserve(held.observers.size());
    for (StreamObserver& observer : held.observers) wanted.push_back(observer.wanted());
    return wanted;
  }

  const Executor& executor() const { return options_.executor ? *options_.executor : impl_.pool_executor; }

  // Learning looks at some queries. Without memory it looks at fewer.
  bool wants_lse(Held& held) {
    if (!impl_.learning.active() || !options_.causal || !options_.observe) return false;
    const uint32_t count = held.item->queries.tokens;
    // The sums know nothing of tokens that were evicted, and learning nothing of which they were.
    const uint32_t length = held.sequence->layer(layer_).length;
    if (impl_.evicts(layer_) && tiers::live_rows(held.sequence->heads(layer_)[0]) != length) return false;
    if (!impl_.learning.wants(layer_, held.positions[0], count)) return false;
    return with_memory([&] {
      held.lse.resize(static_cast<size_t>(count) * config_.query_heads());
      return true;
    });
  }

  void finish(Held& held, attn::AttendWork& work) {
    held.item->status = std::move(work.status);
    if (!held.item->status.ok()) return;
    LayerState& state = held.sequence->layer(layer_);
    fold(held);
    if (held.item->mass || held.looks_back) tell_blocks(held);
    if (learn_) state.window_queries = (state.window_queries + held.item->queries.tokens) % config_.eviction.observation;
    if (options_.observe) state.unobserved = 0;
    if (impl_.query_power.wants(layer_) && held.queries.place == MemoryPlace::host) {
      impl_.query_power.add(layer_, held.queries, params_.scale);
    }
    if (held.learns) {
      impl_.learning.add_queries(held.item->seq, layer_, held.positions[0], held.queries, work.out, work.lse, params_.scale,
                                 params_.softcap, executor());
    }
    if (!held.out.empty()) held.item->status = give_results(held);
  }

  // Results that are here as floats, to where the caller wants them, in his type.
  Status give_results(Held& held) const {
    const DType type = held.item->out_type;
    const size_t bytes = held.out.size() * attn::element_bytes(type);
    void* const from = held.out.data();
    if (type != DType::f32) attn::narrow(held.out.data(), held.out.size(), type, from);
    if (held.brought) return impl_.env.backend->put(from, bytes, held.item->out, held.item->queries.ready);
    std::memcpy(held.item->out, from, bytes);
    return {};
  }

  // What the device has now need not be in host memory too. In a step that is yet to be launched it may not have it.
  void send_away(Held& held) noexcept {
    if (step_ || !impl_.store->far() || !held.item->status.ok() || !keeps_views()) return;
    const auto looked_through = [](const StreamViews& head) { return head.sent_away == head.version; };
    if (std::all_of(held.views.begin(), held.views.end(), looked_through)) return;
    const bool warm = impl_.planner->layer(layer_, held.sequence->layer(layer_).length).warm == kAll;
    const std::span<const tiers::HeadStream> heads = std::as_const(*held.sequence).heads(layer_);
    for (size_t h = 0; h < heads.size(); ++h) tiers::send_away(impl_.env, heads[h], warm, held.views[h]);
  }

  // To the caller who asked for a report, and to whoever brings blocks back.
  void tell_blocks(Held& held) {
    for (StreamObserver& observer : held.observers) {
      const std::vector<BlockMass> blocks = observer.take_blocks();
      held.blocks.insert(held.blocks.end(), blocks.begin(), blocks.end());
    }
    if (held.looks_back) {
      const uint32_t group = config_.query_heads() / config_.num_kv_heads;
      cache::look_back(impl_, *held.sequence, layer_, held.blocks, held.item->queries.tokens * group);
    }
    if (held.item->mass) held.item->mass->blocks.swap(held.blocks);
  }

  AdaptiveKVCache::Impl& impl_;
  const CacheConfig& config_;
  const uint32_t layer_;
  const AttentionOptions& options_;
  attn::StepCalls* const step_;  // in whose graph it is, or null
  const uint32_t call_;
  attn::AttendParams params_;
  bool learn_ = false;  // the policy does
  bool place_ = false;  // the mass of rows that are not archived yet is kept
  std::vector<Held> held_;
  std::vector<attn::AttendWork> works_;
  Loan<Sums> sums_;  // of all observers
};

// Items that the device had no room for, once blocks of other sequences have left it.
void attend_again(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<AttentionItem> items, const AttentionOptions& options) {
  std::vector<SeqId> ids;
  for (const AttentionItem& item : items) ids.push_back(item.seq);
  for (;;) {
    std::vector<AttentionItem> left;
    std::vector<AttentionItem*> of;
    for (AttentionItem& item : items) {
      if (item.status.code() == StatusCode::resource_exhausted) left.push_back(item), of.push_back(&item);
    }
    if (left.empty() || !impl.make_room_on_device(ids)) return;
    Attending call(impl, layer, options);
    if (!call.check().ok() || !call.hold(left).ok()) return;
    call.work();
    for (size_t i = 0; i < left.size(); ++i) of[i]->status = std::move(left[i].status);
  }
}

// `ran`, where given: the items have been worked on, and each has its status.
Status attend(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<AttentionItem> items, const AttentionOptions& options,
              bool* ran = nullptr, attn::StepCalls* step = nullptr, uint32_t number = 0) {
  return guarded("attend", [&]() -> Status {
    const FarBytes* const far = impl.store->far();
    const uint64_t refusals = far ? far->refusals() : 0;
    {
      Attending call(impl, layer, options, step, number);
      TIERKV_RETURN_IF_ERROR(call.check());
      TIERKV_RETURN_IF_ERROR(call.hold(items));
      call.work();
    }
    if (ran) *ran = true;
    if (far && !step && far->refusals() != refusals) attend_again(impl, layer, items, options);
    for (const AttentionItem& item : items) TIERKV_RETURN_IF_ERROR(item.status);
    return {};
  });
}

}  // namespace

namespace cache {

Status check_step_attention(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<const AttentionItem> items,
                            const AttentionOptions& options) {
  TIERKV_RETURN_IF_ERROR(impl.check_layer(layer));
  TIERKV_RETURN_IF_ERROR(check_options(options, impl.config.query_heads()));
  for (const AttentionItem& item : items) {
    TIERKV_RETURN_IF_ERROR(check_shape(item.queries, "queries", impl.config.query_heads(), impl.config.head_dim));
    if (item.queries.tokens == 0 || !item.out)
      return error(StatusCode::invalid_argument, "a step's attention needs queries, and a place for its output");
    if (item.first_position != -1 || item.mass)
      return error(StatusCode::unsupported, "a step's queries are its newest tokens, without a mass report");
  }
  if (options.observe && impl.places[layer]) {
    return error(StatusCode::unsupported, "layer ", layer,
                 " keeps rows better by what they receive, which a graph does not say; set observe = false");
  }
  return {};
}

Status attend_in_step(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<AttentionItem> items, const AttentionOptions& options,
                      attn::StepCalls& step, uint32_t call) {
  return attend(impl, layer, items, options, nullptr, &step, call);
}

Status make_ready(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<const AppendItem> items, attn::StepCalls& step) {
  std::vector<const AppendItem*> sorted;
  for (const AppendItem& item : items) sorted.push_back(&item);
  std::sort(sorted.begin(), sorted.end(), [](const AppendItem* a, const AppendItem* b) { return a->seq < b->seq; });
  std::vector<Held> held(sorted.size());
  std::vector<attn::AttendWork> works(sorted.size());
  for (size_t i = 0; i < sorted.size(); ++i) {
    TIERKV_ASSIGN_OR_RETURN(held[i].sequence, impl.find(sorted[i]->seq));
    held[i].lock = held[i].sequence->mutex.as_is();
    held[i].sequence->land(layer, UINT32_MAX);  // of other layers the step's own may be on their way
    TIERKV_RETURN_IF_ERROR(impl.check_awake(sorted[i]->seq, *held[i].sequence));
    works[i].params.head_dim = impl.config.head_dim;
    for (StreamViews& head : held[i].sequence->kept_views(layer)) {
      const size_t h = works[i].heads.size();
      tiers::collect_views(impl.env, held[i].sequence->heads(layer)[h], impl.planner->hot_codec(), head);
      works[i].heads.emplace_back(head.views);
      works[i].settled.push_back({&head, head.version, head.settled, head.tail_version});
    }
  }
  return impl.env.backend->make_ready(works, step);
}

}  // namespace cache

Status AdaptiveKVCache::attention(SeqId seq, uint32_t layer, const RowsView& queries, float* out, const AttentionOptions& options) {
  AttentionItem item{seq, queries, out, options.first_position, options.mass, {}};
  if (const auto recorded = cache::record_attention(*impl_, layer, {&item, 1}, options)) return *recorded;
  return attend(*impl_, layer, {&item, 1}, options);
}

Status AdaptiveKVCache::attention(uint32_t layer, std::span<AttentionItem> items, const AttentionOptions& options) {
  Status whole;
  if (options.first_position != -1 || options.mass) {
    whole = error(StatusCode::invalid_argument, "attention over many sequences takes first_position and mass from its items");
  }
  if (const auto recorded = whole.ok() ? cache::record_attention(*impl_, layer, items, options) : std::nullopt) {
    for (AttentionItem& item : items) item.status = *recorded;
    return *recorded;
  }
  bool ran = false;  // past the checks of the whole call: items have a status of their own
  if (whole.ok()) whole = attend(*impl_, layer, items, options, &ran);
  if (!ran) {
    for (AttentionItem& item : items) item.status = whole;
  }
  return whole;
}

}  // namespace tierkv
