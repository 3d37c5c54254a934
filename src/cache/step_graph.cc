#include "cache/step_graph.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "base/guarded.h"
#include "base/status_macros.h"
#include "cache/append_many.h"
#include "cache/rows.h"

namespace tierkv {

using tiers::Sequence;

namespace cache {

class CacheStep final : public cuda::StepGraph {
 public:
  CacheStep(AdaptiveKVCache::Impl& impl, std::shared_ptr<const attn::Backend> backend, std::unique_ptr<attn::StepCalls> calls)
      : impl_(impl), backend_(std::move(backend)), calls_(std::move(calls)) {}
  ~CacheStep() override { stop(); }

  // --- recording
  std::optional<Status> append(uint32_t layer, std::span<const AppendItem> items) {
    return recorded(items.empty() ? RowsView() : items[0].keys, [&]() -> Status {
      TIERKV_RETURN_IF_ERROR(check_append(layer, items));
      Call call;
      call.appends.assign(items.begin(), items.end());
      return add(layer, std::move(call), [&] { return calls_->add_append(items); });
    });
  }
  std::optional<Status> attention(uint32_t layer, std::span<const AttentionItem> items, const AttentionOptions& options) {
    return recorded(items.empty() ? RowsView() : items[0].queries, [&]() -> Status {
      TIERKV_RETURN_IF_ERROR(check_step_attention(impl_, layer, items, options));
      for (const AttentionItem& item : items) {
        if (!same_memory(item.queries, items[0].queries))
          return error(StatusCode::invalid_argument, "the queries of one call are in one memory, a device's after one stream");
      }
      Call call;
      call.asks.assign(items.begin(), items.end());
      call.options = options, call.options.executor = nullptr;
      if (options.sink_logits) call.sinks.assign(options.sink_logits, options.sink_logits + impl_.config.query_heads());
      return add(layer, std::move(call), [&] { return calls_->add_attention(items, impl_.config.num_kv_heads); });
    });
  }
  Status end() override {
    return guarded("record a step", [&]() -> Status {
      TIERKV_RETURN_IF_ERROR(calls_->end());
      stop();
      return {};
    });
  }

  Status advance(void* exec, void* stream) override;

 private:
  struct Call {
    uint32_t layer = 0;
    std::vector<AppendItem> appends;  // or
    std::vector<AttentionItem> asks;
    AttentionOptions options;
    std::vector<float> sinks;
  };
  // A layer of a sequence, as it was before the step.
  struct Before {
    SeqId seq = 0;
    uint32_t layer = 0, length = 0, unobserved = 0;
  };

  template <class Record>
  std::optional<Status> recorded(const RowsView& rows, const Record& record) {
    if (rows.place != MemoryPlace::device) return std::nullopt;
    const Result<bool> captured = calls_->captures(rows.ready);
    if (!captured.ok()) return captured.status();
    if (!*captured) return std::nullopt;
    return guarded("record a step", record);
  }
  template <class Places>
  Status add(uint32_t layer, Call call, const Places& places) {
    if (impl_.backend != backend_) return gone();
    call.layer = layer;
    recorded_.reserve(recorded_.size() + 1);
    TIERKV_RETURN_IF_ERROR(places());
    recorded_.push_back(std::move(call));
    return {};
  }
  Status check_append(uint32_t layer, std::span<const AppendItem> items) const;
  void stop() noexcept {
    CacheStep* self = this;
    impl_.recording.compare_exchange_strong(self, nullptr);
  }
  static Status gone() {
    return error(StatusCode::failed_precondition, "the step was recorded on a device that the cache is no longer attached to");
  }

  Status check_sequences() const;
  Status append_all(std::vector<Before>& done);
  Status append_one(uint32_t number, std::vector<Before>& done);
  Status attend_all();
  void take_back(std::span<const Before> done) noexcept;
  bool take_back(const Before& one) noexcept;

  AdaptiveKVCache::Impl& impl_;
  const std::shared_ptr<const attn::Backend> backend_;
  const std::unique_ptr<attn::StepCalls> calls_;
  std::vector<Call> recorded_;
  bool lost_ = false;  // something could not be taken back
};

Status CacheStep::check_append(uint32_t layer, std::span<const AppendItem> items) const {
  for (const AppendItem& item : items) {
    TIERKV_RETURN_IF_ERROR(check_rows(impl_, item));
    if (!same_memory(item.keys, items[0].keys) || !same_memory(item.values, items[0].keys))
      return error(StatusCode::invalid_argument, "the rows of one call are in one memory, a device's after one stream");
  }
  TIERKV_RETURN_IF_ERROR(check_step_append(impl_, layer, items));
  const auto has = [](std::span<const AppendItem> of, SeqId seq) {
    return std::any_of(of.begin(), of.end(), [&](const AppendItem& item) { return item.seq == seq; });
  };
  for (const Call& call : recorded_) {
    if (call.layer != layer) continue;
    const bool again = std::any_of(items.begin(), items.end(), [&](const AppendItem& item) { return has(call.appends, item.seq); });
    if (!again && call.asks.empty()) continue;
    return error(StatusCode::unsupported, "layer ", layer, again ? " was appended to" : " was attended to",
                 " in this graph already; a graph is one step: a layer is appended to once, and then attended to");
  }
  return {};
}

// --- a step

Status CacheStep::advance(void* exec, void* stream) {
  return guarded("advance a step", [&]() -> Status {
    if (impl_.backend != backend_) return gone();
    if (lost_) {
      return error(StatusCode::failed_precondition,
                   "a step that failed could not be taken back; truncate() its sequences to their common length and record again");
    }
    TIERKV_RETURN_IF_ERROR(check_sequences());
    TIERKV_RETURN_IF_ERROR(calls_->begin(exec, stream));
    std::vector<Before> done;
    Status status = guarded("advance a step", [&]() -> Status {
      TIERKV_RETURN_IF_ERROR(append_all(done));
      return attend_all();
    });
    if (!status.ok()) {
      calls_->give_up();
      take_back(done);
    }
    return status;
  });
}

// What can be said before anything has changed.
Status CacheStep::check_sequences() const {
  for (const Call& call : recorded_) {
    if (call.layer != recorded_[0].layer) continue;
    const auto check = [&](SeqId id) -> Status {
      TIERKV_ASSIGN_OR_RETURN(const std::shared_ptr<Sequence> seq, impl_.find(id));
      const auto lock = seq->mutex.as_is();
      return impl_.check_awake(id, *seq);
    };
    for (const AppendItem& item : call.appends) TIERKV_RETURN_IF_ERROR(check(item.seq));
    for (const AttentionItem& item : call.asks) TIERKV_RETURN_IF_ERROR(check(item.seq));
  }
  return {};
}

Status CacheStep::append_all(std::vector<Before>& done) {
  for (uint32_t i = 0; i < recorded_.size(); ++i) {
    if (!recorded_[i].appends.empty()) TIERKV_RETURN_IF_ERROR(append_one(i, done));
  }
  return {};
}

Status CacheStep::append_one(uint32_t number, std::vector<Before>& done) {
  Call& call = recorded_[number];
  std::vector<Before> before;
  for (const AppendItem& item : call.appends) {
    TIERKV_ASSIGN_OR_RETURN(const std::shared_ptr<Sequence> seq, impl_.find(item.seq));
    const auto lock = seq->mutex.as_is();
    const tiers::LayerState& state = seq->layer(call.layer);
    before.push_back({item.seq, call.layer, state.length, state.unobserved});
  }
  done.reserve(done.size() + before.size());
  TIERKV_ASSIGN_OR_RETURN(bool taken, append_in_step(impl_, call.layer, call.appends, *calls_, number));
  if (!taken) {
    TIERKV_RETURN_IF_ERROR(make_ready(impl_, call.layer, call.appends, *calls_));
    TIERKV_ASSIGN_OR_RETURN(taken, append_in_step(impl_, call.layer, call.appends, *calls_, number));
    if (!taken) return error(StatusCode::internal, "the device has no room for rows that it was made ready for");
  }
  done.insert(done.end(), before.begin(), before.end());
  return {};
}

// Again where what they read had to move, or another call came in between.
Status CacheStep::attend_all() {
  constexpr int kMostTimes = 100;
  for (int time = 0; time < kMostTimes; ++time) {
    for (uint32_t i = 0; i < recorded_.size(); ++i) {
      Call& call = recorded_[i];
      if (call.asks.empty()) continue;
      call.options.sink_logits = call.sinks.empty() ? nullptr : call.sinks.data();
      TIERKV_RETURN_IF_ERROR(attend_in_step(impl_, call.layer, call.asks, call.options, *calls_, i));
    }
    TIERKV_ASSIGN_OR_RETURN(const bool finished, calls_->finish());
    if (finished) return {};
  }
  return error(StatusCode::failed_precondition,
               "other calls on the device came in between again and again; advance the step alone");
}

void CacheStep::take_back(std::span<const Before> done) noexcept {
  for (size_t i = done.size(); i-- > 0;) {
    if (!take_back(done[i])) lost_ = true;
  }
}

bool CacheStep::take_back(const Before& one) noexcept {
  return with_memory([&] {
    const auto found = impl_.find(one.seq);
    if (!found.ok()) return true;
    Sequence& seq = **found;
    const std::lock_guard lock(seq.mutex);  // rows that will not come land as what they are
    tiers::LayerState& state = seq.layer(one.layer);
    if (state.length <= one.length) return true;
    const plan::LayerPlan plan = impl_.planner->layer(one.layer, one.length);
    for (tiers::HeadStream& s : seq.heads(one.layer)) {
      if (!tiers::prepare_truncate(impl_.env, s, plan, one.length)) return false;
    }
    for (tiers::HeadStream& s : seq.heads(one.layer)) tiers::truncate(impl_.env, s, plan, one.length);
    state.length = one.length, state.unobserved = one.unobserved;
    seq.forget_spoiled(one.length);
    return true;
  });
}

// --- who records

std::optional<Status> record_append(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<const AppendItem> items) {
  CacheStep* const step = impl.recording.load(std::memory_order_relaxed);
  return step ? step->append(layer, items) : std::nullopt;
}

std::optional<Status> record_attention(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<const AttentionItem> items,
                                       const AttentionOptions& options) {
  CacheStep* const step = impl.recording.load(std::memory_order_relaxed);
  return step ? step->attention(layer, items, options) : std::nullopt;
}

}  // namespace cache

Result<std::unique_ptr<cuda::StepGraph>> AdaptiveKVCache::record_step() try {
  TIERKV_ASSIGN_OR_RETURN(std::unique_ptr<attn::StepCalls> calls, impl_->env.backend->record());
  auto step = std::make_unique<cache::CacheStep>(*impl_, impl_->backend, std::move(calls));
  cache::CacheStep* none = nullptr;
  if (!impl_->recording.compare_exchange_strong(none, step.get())) {
    return error(StatusCode::failed_precondition, "another step is being recorded; end() it first, or give it up");
  }
  return std::unique_ptr<cuda::StepGraph>(std::move(step));
}
TIERKV_NO_MEMORY("record a step")

}  // namespace tierkv
