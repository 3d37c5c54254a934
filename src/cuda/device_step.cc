#include "cuda/device_step.h"

#include <algorithm>
#include <cstring>

#include "base/guarded.h"
#include "cuda/works.h"

namespace tierkv::cuda {

using attn::AttendWork;

namespace {

class StepArrival final : public attn::Arrival {
 public:
  StepArrival(std::shared_ptr<StepState> state, std::shared_ptr<Slot> slot, uint64_t number)
      : state_(std::move(state)), slot_(std::move(slot)), number_(number) {}
  bool arrived() const override { return state_->progress().reached(number_) && state_->progress().whole(number_); }
  Status wait() const override {
    if (arrived()) return {};
    TIERKV_RETURN_IF_ERROR(state_->graph->wait());
    if (arrived()) return {};
    return error(StatusCode::failed_precondition, "the step was advanced, and not launched once");
  }

 private:
  const std::shared_ptr<StepState> state_;
  const std::shared_ptr<Slot> slot_;
  const uint64_t number_;
};

}  // namespace

// --- recording

Result<std::unique_ptr<attn::StepCalls>> DeviceAttention::record() const {
  const auto lock = alone();
  return guarded("record a step", [&]() -> Result<std::unique_ptr<attn::StepCalls>> {
    TIERKV_RETURN_IF_ERROR(machine_->enter());
    TIERKV_ASSIGN_OR_RETURN(std::unique_ptr<Graph> graph, machine_->make_graph());
    auto state = std::make_shared<StepState>(machine_, std::move(graph));
    TIERKV_RETURN_IF_ERROR(state->memory.reserve(sizeof(Progress)));
    new (state->memory.data()) Progress;
    steps_.reserve(steps_.size() + 1);
    auto step = std::make_unique<DeviceStep>(*this, std::move(state));
    steps_.push_back(step.get());
    return std::unique_ptr<attn::StepCalls>(std::move(step));
  });
}

DeviceStep::DeviceStep(const DeviceAttention& device, std::shared_ptr<StepState> state)
    : device_(device), state_(std::move(state)) {}

DeviceStep::~DeviceStep() {
  const auto lock = device_.alone();
  std::erase(device_.steps_, this);
  (void)device_.machine_->enter();
  (void)state_->graph->wait();  // it writes to the slots
}

Result<bool> DeviceStep::captures(void* stream) { return ended_ ? Result<bool>(false) : state_->graph->captures(stream); }

Status DeviceStep::add_append(std::span<const AppendItem> items) {
  return guarded("record an append", [&]() -> Status {
    const auto lock = device_.alone();
    TIERKV_RETURN_IF_ERROR(device_.machine_->enter());
    TIERKV_RETURN_IF_ERROR(state_->graph->follow(items[0].keys.ready));
    calls_.reserve(calls_.size() + 1);
    TIERKV_RETURN_IF_ERROR(state_->graph->add_moves(4 * items.size()));
    calls_.emplace_back().moves = moves_++;
    return {};
  });
}

Status DeviceStep::add_attention(std::span<const AttentionItem> items, uint32_t kv_heads) {
  return guarded("record attention", [&]() -> Status {
    const auto lock = device_.alone();
    const RowsView& first = items[0].queries;
    Call call;
    call.attends = true;
    std::vector<std::pair<const uint8_t*, size_t>> outs;
    for (const AttentionItem& item : items) {
      const size_t elements = size_t{item.queries.tokens} * first.heads * first.head_dim;
      outs.emplace_back(reinterpret_cast<const uint8_t*>(item.out), elements * element_bytes(item.out_type));
      call.flags += item.queries.tokens * kv_heads;
    }
    std::sort(outs.begin(), outs.end());
    call.has_results = reinterpret_cast<uintptr_t>(outs[0].first) % 16 != 0;
    for (size_t i = 1; i < outs.size(); ++i) call.has_results |= outs[i].first != outs[i - 1].first + outs[i - 1].second;
    if (first.heads / kv_heads > kMostGroup || first.head_dim > 256) {
      return error(StatusCode::unsupported, "groups of more than ", kMostGroup,
                   " query heads, or heads of more than 256 channels, are not attended to on the device, and not in a graph");
    }
    TIERKV_RETURN_IF_ERROR(device_.machine_->enter());
    TIERKV_RETURN_IF_ERROR(state_->graph->follow(first.ready));
    calls_.reserve(calls_.size() + 1);
    call.moves = moves_, call.attend = attends_, call.results = moves_ + 1, call.first_flag = flags_;
    TIERKV_RETURN_IF_ERROR(state_->graph->add_moves(items.size()));
    TIERKV_RETURN_IF_ERROR(state_->graph->add_attend(first.heads / kv_heads, first.head_dim));
    if (call.has_results) TIERKV_RETURN_IF_ERROR(state_->graph->add_moves(items.size()));
    moves_ += call.has_results ? 2 : 1, attends_ += 1, flags_ += call.flags;
    calls_.push_back(call);
    return {};
  });
}

Status DeviceStep::end() {
  const auto lock = device_.alone();
  if (ended_) return error(StatusCode::failed_precondition, "the recording has ended already");
  if (calls_.empty())
    return error(StatusCode::failed_precondition, "no call was recorded: none was made on a stream that is captured");
  TIERKV_RETURN_IF_ERROR(device_.machine_->enter());
  TIERKV_RETURN_IF_ERROR(state_->graph->add_end());
  ended_ = true;
  return {};
}

// --- a step

void DeviceStep::forget_plans() {
  planned_.clear();
  front_.clear();
  moved_ = false;
}

Status DeviceStep::begin(void* exec, void* stream) {
  return guarded("advance a step", [&]() -> Status {
    const auto lock = device_.alone();
    if (!ended_) return error(StatusCode::failed_precondition, "the recording has not ended; call end() before the capture does");
    const Progress& progress = state_->progress();
    if (const uint64_t broken = Progress::read(progress.broken); broken != 0) {
      return error(StatusCode::failed_precondition, "step ", broken,
                   " of this graph was advanced and not launched, or launched twice, and what came after it read rows that are not "
                   "there; truncate() its sequences to the tokens before it and record again");
    }
    Machine& machine = *device_.machine_;
    TIERKV_RETURN_IF_ERROR(machine.enter());
    TIERKV_RETURN_IF_ERROR(machine.follow({true, stream}));
    Status begun = device_.look_back(false);
    if (begun.ok() && state_->flags.size() == 0 && flags_ != 0) {
      begun = state_->flags.reserve(flags_ * sizeof(uint32_t));
      if (begun.ok()) std::memset(state_->flags.data(), 0, flags_ * sizeof(uint32_t));
    }
    if (begun.ok()) begun = state_->graph->set_end(exec, &state_->progress(), number_);
    if (!begun.ok()) {
      (void)machine.leave();
      return begun;
    }
    while (!slots_.empty() && progress.reached(slots_.front().first)) slots_.pop_front();
    stream_ = stream;
    forget_plans();
    return {};
  });
}

Status DeviceStep::move_rows(uint32_t call, std::span<const RowMove> moves, uint32_t head_dim) {
  return state_->graph->set_moves(calls_[call].moves, moves, head_dim);
}

std::shared_ptr<const attn::Arrival> DeviceStep::arrival(std::shared_ptr<Slot> slot) {
  slots_.emplace_back(number_, slot);
  return std::make_shared<const StepArrival>(state_, std::move(slot), number_);
}

Status DeviceAttention::make_ready(std::span<AttendWork> works, attn::StepCalls& of) const {
  const auto lock = alone();
  return guarded("send hot rows", [&]() -> Status {
    TIERKV_RETURN_IF_ERROR(machine_->enter());
    TIERKV_RETURN_IF_ERROR(machine_->follow(DeviceStep::of(&of)->stream()));
    Status status = [&]() -> Status {
      size_t staged = 0;
      for (const AttendWork& work : works) tails_.clear_for(work, kMostQueries);
      for (const AttendWork& work : works) staged += tails_.staged_bytes(work);
      TIERKV_RETURN_IF_ERROR(tails_.begin_call(staged));
      for (const AttendWork& work : works) {
        TIERKV_ASSIGN_OR_RETURN(const Tails::Strip* const strip, tails_.place(work));
        if (!strip) {
          return error(StatusCode::failed_precondition,
                       "a sequence has no hot rows that a step's could follow; append to it without the graph first");
        }
      }
      return {};
    }();
    const Status ended = slots_.end_call();
    changes_.end_call(false);
    return status.ok() ? ended : status;
  });
}

void DeviceAttention::attend_in_step(std::span<AttendWork> works) const {
  DeviceStep& step = *DeviceStep::of(works[0].step);
  const Status status = guarded("attend in a graph", [&]() -> Status {
    TIERKV_RETURN_IF_ERROR(machine_->enter());
    TIERKV_RETURN_IF_ERROR(machine_->follow(step.stream()));
    Works batch;
    for (AttendWork& work : works) {
      if (!serves(work) || is_prompt(work) || !same_shape(work, works[0]) || work.lse || !work.mass.empty()) {
        return error(StatusCode::unsupported,
                     "a call whose results or statistics the processor has a part in cannot be in a graph: codecs that the device "
                     "does not read, observe = true where rows compete, a mass report");
      }
      if (!tails_.has(work)) {
        return error(StatusCode::failed_precondition, "the device has not all hot rows of layer ", layer_of(work),
                     "; a layer that a graph attends to is appended to by it, or was attended to before");
      }
      batch.push_back(&work);
    }
    return plan_in_step(batch, step);
  });
  const Status ended = slots_.end_call();
  changes_.end_call(false);
  for (AttendWork& work : works) work.status = status.ok() ? ended : status;
}

Status DeviceAttention::plan_in_step(const Works& batch, DeviceStep& step) const {
  if (step.planned_.empty()) {  // what this step asks for stays until the next call
    mirror_.places().begin_call();
    standing_.begin_call();
    step.others_ = others_;
  }
  const AttendWork& first = *batch.front();
  TIERKV_RETURN_IF_ERROR(list_views(batch));
  TIERKV_RETURN_IF_ERROR(place_tails(batch));
  for (const Listed& listed : listed_) {
    if (std::any_of(listed.placed.begin(), listed.placed.end(), [](const Placed& placed) { return !placed.keys; })) {
      return error(StatusCode::unsupported, "layer ", layer_of(first), " has rows that are sent with every call: not in a graph");
    }
  }
  place_rows(batch);
  TIERKV_RETURN_IF_ERROR(collect(batch));
  DeviceStep::Planned& planned = step.planned_.emplace_back();
  DeviceStep::Call& call = step.calls_[first.call];
  call.layer = layer_of(first);
  planned.call = first.call, planned.at = line_rounded(step.front_.size());
  planned.query_rows = query_rows_.data(), planned.queries = moves_;
  planned.rows = rows_.count, planned.out = rows_.out;
  planned.plan = plan_for(first, standing_.base() - static_cast<uint32_t>(planned.at / sizeof(ViewDesc)));
  planned.launch = launch_of(planned.plan, first);
  if (planned.plan.tasks.size() != call.flags || (rows_.out == nullptr) != call.has_results) {
    return error(StatusCode::internal, "a step's call has other rows than were recorded");
  }
  const Parcel parcel = parcel_of(planned.plan, first);
  step.front_.resize(planned.at + parcel.bytes);
  parcel.write(step.front_.data() + planned.at);
  planned.parcel = parcel, planned.parcel.parts.clear();
  const uint32_t base = standing_.base();
  TIERKV_RETURN_IF_ERROR(standing_.reserve_front(step.front_.size()));
  step.moved_ |= standing_.base() != base;
  TIERKV_RETURN_IF_ERROR(reserve_room(planned.plan, planned.rows, planned.launch));
  if (call.has_results) {
    planned.result_rows = results_.data();
    move_results(batch, reinterpret_cast<const float*>(results_.data()), first.params.head_dim);
    planned.results = moves_;
  }
  return {};
}

Result<bool> DeviceStep::finish() {
  const auto lock = device_.alone();
  return guarded("advance a step", [&]() -> Result<bool> {
    TIERKV_RETURN_IF_ERROR(device_.machine_->enter());
    if (moved_ || (!planned_.empty() && others_ != device_.others_)) {
      forget_plans();
      return false;
    }
    TIERKV_RETURN_IF_ERROR(device_.machine_->follow(stream()));
    TIERKV_RETURN_IF_ERROR(keep_near());
    const Result<bool> finished = device_.finish_step(*this);
    const Status ended = device_.slots_.end_call();
    device_.changes_.end_call(false);
    TIERKV_RETURN_IF_ERROR(finished.status());
    TIERKV_RETURN_IF_ERROR(ended);
    TIERKV_RETURN_IF_ERROR(device_.machine_->leave_to(*state_->graph));
    ++number_;
    forget_plans();
    return true;
  });
}

Status DeviceStep::keep_near() {
  std::unique_ptr<Mark> mark;
  if (marks_.size() < kMostAhead) {
    TIERKV_ASSIGN_OR_RETURN(mark, device_.machine_->make_mark());
  } else {
    mark = std::move(marks_.front());
    marks_.pop_front();
    TIERKV_RETURN_IF_ERROR(mark->wait());
  }
  TIERKV_RETURN_IF_ERROR(device_.machine_->put(*mark));
  marks_.push_back(std::move(mark));
  return {};
}

void DeviceStep::give_up() noexcept {
  const auto lock = device_.alone();
  (void)device_.machine_->enter();
  (void)device_.machine_->leave();
  forget_plans();
}

// Everything that grows has its size: what places do is known to the last address.
Result<bool> DeviceAttention::finish_step(DeviceStep& step) const {
  if (step.planned_.empty()) return true;
  TIERKV_RETURN_IF_ERROR(standing_.send_areas());
  TIERKV_ASSIGN_OR_RETURN(const CodecDesc* const codecs, tables_.there());
  TIERKV_ASSIGN_OR_RETURN(const std::shared_ptr<Slot> slot, slots_.take(step.front_.size()));
  std::memcpy(slot->data(), step.front_.data(), step.front_.size());
  TIERKV_RETURN_IF_ERROR(machine_->send(standing_.data(), slot->data(), step.front_.size()));
  counts_.parcel_bytes = step.front_.size();
  Graph& graph = *step.state_->graph;
  for (DeviceStep::Planned& planned : step.planned_) {
    const DeviceStep::Call& call = step.calls_[planned.call];
    Launch& launch = planned.launch;
    planned.parcel.point(standing_.data() + planned.at, launch);
    launch.codecs = codecs;
    launch.queries = reinterpret_cast<const float*>(query_rows_.data());
    launch.failed = reinterpret_cast<uint32_t*>(step.state_->flags.data()) + call.first_flag;
    use_room(planned.plan, planned.rows, planned.out, launch);
    for (RowMove& move : planned.queries) {
      move.to = query_rows_.data() + (static_cast<const uint8_t*>(move.to) - planned.query_rows);
    }
    for (RowMove& move : planned.results) {
      move.from = results_.data() + (static_cast<const uint8_t*>(move.from) - planned.result_rows);
    }
    TIERKV_RETURN_IF_ERROR(graph.set_moves(call.moves, planned.queries, launch.head_dim));
    TIERKV_RETURN_IF_ERROR(graph.set_attend(call.attend, launch, planned.plan));
    if (call.has_results) TIERKV_RETURN_IF_ERROR(graph.set_moves(call.results, planned.results, launch.head_dim));
    ++launches_;
  }
  return true;
}

// Flags are the device's to set and ours to clear, which nobody must miss.
Status DeviceAttention::look_back_at_steps() const {
  Status found;
  for (DeviceStep* step : steps_) {
    const uint64_t done = Progress::read(step->state_->progress().done);
    if (done == step->looked_at_ || step->state_->flags.size() == 0) continue;
    step->looked_at_ = done;
    auto* const flags = reinterpret_cast<uint32_t*>(step->state_->flags.data());
    for (const DeviceStep::Call& call : step->calls_) {
      bool failed = false;
      for (uint32_t t = 0; t < call.flags; ++t) {
        std::atomic_ref flag(flags[call.first_flag + t]);
        if (flag.load(std::memory_order_relaxed) != 0) failed |= flag.exchange(0) != 0;
      }
      if (failed && found.ok()) found = out_of_its_range(call.layer);
    }
  }
  return found;
}

}  // namespace tierkv::cuda
