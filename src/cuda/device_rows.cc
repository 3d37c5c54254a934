// device_rows.cc — the part of DeviceAttention that is about the caller's own memory on the device: results that stay there, rows
// that come down, and what is only known later.
#include <atomic>
#include <cstring>

#include "attn/cpu_backend.h"
#include "attn/rows.h"
#include "base/guarded.h"
#include "cuda/device_attention.h"
#include "cuda/device_step.h"

namespace tierkv::cuda {

using attn::AttendWork;

// Calls that may be on their way: a processor that is further ahead waits for the first of them.
constexpr size_t kMostLate = 512;

Status DeviceAttention::out_of_its_range(uint32_t layer) {
  return error(
      StatusCode::out_of_range, "an earlier call: queries of layer ", layer,
      " were not finite, or their scores left the range of the device's numbers; their results are zeros. Attend from host "
      "memory, which has more range");
}

Status DeviceAttention::look_back(bool all) const {
  Status found = look_back_at_steps();
  while (!late_.empty()) {
    const Late late = late_.front();
    if (!all && late_.size() < kMostLate && !late.slot->reached()) break;
    late_.pop_front();
    if (late.slot->put) {
      if (Status waited = late.slot->mark->wait(); !waited.ok()) {
        late_.clear();
        return waited;
      }
    }
    for (size_t t = 0; t < late.tasks && found.ok(); ++t) {
      if (late.failed[t] == 0) continue;
      found = out_of_its_range(late.layer);
    }
  }
  return found;
}

Status DeviceAttention::check() const {
  const auto lock = alone();
  return guarded("wait for the device", [&]() -> Status {
    TIERKV_RETURN_IF_ERROR(machine_->enter());
    TIERKV_RETURN_IF_ERROR(machine_->follow({}));
    TIERKV_RETURN_IF_ERROR(machine_->wait());
    return look_back(true);
  });
}

// Of results that are not in one piece.
void DeviceAttention::move_results(const Works& batch, const float* from, uint32_t head_dim) const {
  moves_.clear();
  for (size_t w = 0; w < batch.size(); ++w) {
    const AttendWork& work = *batch[w];
    const RowsView rows = RowsView::f32(from + rows_.first[w] * head_dim, work.queries.tokens, work.queries.heads, head_dim);
    moves_.push_back(move_dense(rows, work.out, work.out_type));
  }
}

// Results of works on the device are there already, or on their way in one piece.
Status DeviceAttention::leave_results(const Works& batch, const Launch& launch, const Executor& run) const {
  bool asked = false;
  for (AttendWork* work : batch) {
    work->status = Status();
    asked |= work->lse || !work->mass.empty();
  }
  if (!rows_.out) {
    move_results(batch, launch.out, launch.head_dim);
    TIERKV_RETURN_IF_ERROR(machine_->move_rows(moves_, launch.head_dim));
  }
  return asked ? bring_sums(batch, launch, run) : Status();
}

// Somebody wants to know sums, or what rows receive. Where the processor adds that up the queries come down too.
Status DeviceAttention::bring_sums(const Works& batch, const Launch& launch, const Executor& run) const {
  const size_t d = launch.head_dim, queries = mass_.asked ? 0 : rows_.count * d * sizeof(float), sums = rows_.count * sizeof(float);
  TIERKV_ASSIGN_OR_RETURN(const std::shared_ptr<Slot> slot, slots_.take(queries + sums));
  if (queries != 0) TIERKV_RETURN_IF_ERROR(machine_->fetch(slot->data(), query_rows_.data(), queries));
  TIERKV_RETURN_IF_ERROR(machine_->fetch(slot->data() + queries, reinterpret_cast<const uint8_t*>(launch.lse), sums));
  TIERKV_RETURN_IF_ERROR(machine_->wait());
  const auto* const rows = reinterpret_cast<const float*>(slot->data());
  const auto* const lse = reinterpret_cast<const float*>(slot->data() + queries);
  for (size_t w = 0; w < batch.size(); ++w) {
    AttendWork& work = *batch[w];
    const size_t first = rows_.first[w];
    if (work.lse) std::memcpy(work.lse, lse + first, size_t{work.queries.tokens} * work.queries.heads * sizeof(float));
    if (work.mass.empty()) continue;
    const RowsView there = work.queries;
    if (queries != 0) work.queries = RowsView::f32(rows + first * d, there.tokens, there.heads, launch.head_dim);
    work.status = tell_mass(work, w, lse + first, run);
    work.queries = there;
  }
  return {};
}

// What the device does not do. Its queries come down and its results go up again where the caller has them there.
void DeviceAttention::on_processor(AttendWork& work, const Executor& run) const {
  ++on_processor_;
  ask_for_pending(false);
  if (work.queries.place == MemoryPlace::host) return attend_near(work, run);
  const RowsView queries = work.queries;
  float* const out = work.out;
  const DType type = std::exchange(work.out_type, DType::f32);
  Status status = guarded("attend on the processor", [&]() -> Status {
    TIERKV_RETURN_IF_ERROR(machine_->follow(stream_of(queries)));
    TIERKV_ASSIGN_OR_RETURN(const std::shared_ptr<Slot> slot, brought({&work.queries, 1}));
    std::vector<float> results(out ? size_t{queries.tokens} * queries.heads * queries.head_dim : 0);
    work.out = out ? results.data() : nullptr;
    attend_near(work, run);
    if (!work.status.ok() || !out) return work.status;
    const size_t bytes = results.size() * element_bytes(type);
    if (type != DType::f32) attn::narrow(results.data(), results.size(), type, results.data());
    return send_results(results.data(), bytes, out);
  });
  const Status ended = slots_.end_call();
  work.queries = queries, work.out = out, work.out_type = type;
  work.status = status.ok() ? ended : std::move(status);
}

// Rows that are on their way to host memory have arrived before anybody reads them there: the processor, where it adds up what rows
// receive, or who sends them to a strip that does not have them.
Status DeviceAttention::land_if_read(const AttendWork& work, bool served) const {
  const bool weighs = !work.mass.empty() && (!mass_.there || work.queries.tokens > kMostQueries);
  if (served && !weighs && (!work.land || tails_.has(work))) return {};
  return land(work);
}
Status DeviceAttention::land(const AttendWork& work) const {
  if (!work.land) return {};
  ask_for_pending(false);  // or he who waits for it would do so, and wait for us
  return work.land();
}

namespace {

class SlotArrival final : public attn::Arrival {
 public:
  explicit SlotArrival(std::shared_ptr<Slot> slot) : slot_(std::move(slot)) {}
  bool arrived() const override { return done_.load(std::memory_order_acquire) || (slot_->reached() && wait().ok()); }
  Status wait() const override {
    if (done_.load(std::memory_order_acquire)) return {};
    Status waited = slot_->put ? slot_->mark->wait() : Status();
    if (waited.ok()) done_.store(true, std::memory_order_release);
    return waited;
  }

 private:
  const std::shared_ptr<Slot> slot_;
  mutable std::atomic<bool> done_{false};  // the device is asked once for all sequences
};

}  // namespace

// Of rows that are pending as long as its gate is open.
class DeviceAttention::PendingArrival final : public attn::Arrival {
 public:
  PendingArrival(const DeviceAttention& device, std::shared_ptr<const Gate> gate, std::shared_ptr<Slot> slot)
      : device_(device), gate_(std::move(gate)), arrival_(std::move(slot)) {}
  bool arrived() const override { return !gate_->open.load(std::memory_order_acquire) && gate_->status.ok() && arrival_.arrived(); }
  Status wait() const override {
    if (gate_->open.load(std::memory_order_acquire)) device_.settle();
    return gate_->status.ok() ? arrival_.wait() : gate_->status;
  }

 private:
  const DeviceAttention& device_;  // looked at while the gate is open: then a call of its cache is under way
  const std::shared_ptr<const Gate> gate_;
  const SlotArrival arrival_;
};

void DeviceAttention::ask_for_pending(bool leave) const noexcept {
  if (!pending_.gate) return;
  Status status = machine_->enter();
  if (status.ok()) status = guarded("move rows", [&] { return machine_->move_rows(pending_.moves, pending_.head_dim); });
  const Status ended = slots_.end_call();
  changes_.end_call(false);
  pending_is_asked_for(status.ok() ? ended : std::move(status));
  if (leave) (void)machine_->leave();
}

void DeviceAttention::pending_is_asked_for(Status status) const noexcept {
  const Pending pending = std::exchange(pending_, {});
  for (const void* owner : pending.owners) {
    if (!status.ok()) tails_.forget(owner);  // nobody knows what is there
  }
  pending.gate->status = std::move(status);
  pending.gate->open.store(false, std::memory_order_release);
}

void DeviceAttention::settle() const noexcept { (void)alone(); }

namespace {

// To a strip, and to [KV head][keys, values][tokens][head_dim].
void move_taken(const attn::TakeWork& work, const Tails::Strip& strip, uint16_t* arriving, std::vector<RowMove>& out) {
  const int64_t dim = work.keys.head_dim, tokens = work.keys.tokens;
  const DType type = work.bf16 ? DType::bf16 : DType::f16;
  for (const bool values : {false, true}) {
    const RowsView& from = values ? work.values : work.keys;
    const uint8_t* const there = values ? strip.values(0, work.position) : strip.keys(0, work.position);
    RowMove move = move_dense(from, const_cast<uint8_t*>(there), type);
    move.to_token = dim, move.to_head = 2 * static_cast<int64_t>(strip.room) * dim;
    out.push_back(move);
    move.to = arriving + (values ? tokens * dim : 0);
    move.to_head = 2 * tokens * dim;
    out.push_back(move);
  }
}

}  // namespace

Result<std::shared_ptr<const attn::Arrival>> DeviceAttention::take(std::span<attn::TakeWork> works, bool attended) const {
  const auto lock = alone();
  bool followed = false;
  auto taken = guarded("take rows", [&]() -> Result<std::shared_ptr<const attn::Arrival>> {
    if (works.empty()) return std::shared_ptr<const attn::Arrival>();
    const DeviceStep* const step = DeviceStep::of(works[0].step);
    TIERKV_RETURN_IF_ERROR(machine_->enter());
    TIERKV_RETURN_IF_ERROR(machine_->follow(step ? step->stream() : stream_of(works[0].keys)));
    followed = true;
    if (!step) TIERKV_RETURN_IF_ERROR(look_back(false));
    return take_rows(works, attended && !step);
  });
  if (!followed) return taken;  // nothing was asked for
  if (pending_.gate) return taken;
  const Status ended = slots_.end_call();
  changes_.end_call(false);
  if (!works[0].step) (void)machine_->leave();
  if (taken.ok() && ended.ok()) return taken;
  for (const attn::TakeWork& work : works) tails_.forget(work.owner);  // nobody knows what is there
  return taken.ok() ? Result<std::shared_ptr<const attn::Arrival>>(ended) : taken;
}

Result<std::shared_ptr<const attn::Arrival>> DeviceAttention::take_rows(std::span<attn::TakeWork> works, bool attended) const {
  const auto floats = [](const attn::TakeWork& work) {
    return size_t{2} * work.keys.tokens * work.keys.heads * work.keys.head_dim;
  };
  std::vector<Tails::Strip*> strips(works.size());
  size_t bytes = 0, at = 0;
  for (size_t i = 0; i < works.size(); ++i) {
    TIERKV_ASSIGN_OR_RETURN(strips[i], tails_.extend(works[i]));
    if (strips[i]) bytes += floats(works[i]) * sizeof(uint16_t);
    else if (works[i].step) return std::shared_ptr<const attn::Arrival>();
  }
  if (bytes == 0) return std::shared_ptr<const attn::Arrival>();
  TIERKV_ASSIGN_OR_RETURN(std::shared_ptr<Slot> slot, slots_.take(bytes));
  moves_.clear();
  for (size_t i = 0; i < works.size(); ++i) {
    if (!strips[i]) continue;
    auto* const arriving = reinterpret_cast<uint16_t*>(slot->data()) + at;
    move_taken(works[i], *strips[i], arriving, moves_);
    works[i].rows = arriving;
    at += floats(works[i]);
  }
  DeviceStep* const step = DeviceStep::of(works[0].step);
  const uint32_t dim = works[0].keys.head_dim;
  std::shared_ptr<const attn::Arrival> arrival;
  Pending pending;
  if (attended) {
    pending = {std::make_shared<Gate>(), moves_, {}, stream_of(works[0].keys), dim};
    pending.owners.reserve(works.size());
    arrival = std::make_shared<const PendingArrival>(*this, pending.gate, slot);
  } else if (step) {
    arrival = step->arrival(slot);
  } else {
    arrival = std::make_shared<const SlotArrival>(slot);
  }
  const Status moved = attended ? Status() : step ? step->move_rows(works[0].call, moves_, dim) : machine_->move_rows(moves_, dim);
  for (size_t i = 0; i < works.size(); ++i) {
    if (!strips[i] || !moved.ok()) continue;
    Tails::filled(*strips[i], works[i].position + works[i].keys.tokens);
    works[i].taken = true;
    counts_.rows_taken += works[i].keys.tokens;
    if (attended) pending.owners.push_back(works[i].owner);
  }
  TIERKV_RETURN_IF_ERROR(moved);
  if (attended) pending_ = std::move(pending);
  return arrival;
}

// REQUIRES: their stream is followed.
Result<std::shared_ptr<Slot>> DeviceAttention::brought(std::span<RowsView> rows) const {
  size_t bytes = 0;
  for (const RowsView& view : rows) bytes += line_rounded(dense_bytes(view));
  TIERKV_ASSIGN_OR_RETURN(std::shared_ptr<Slot> slot, slots_.take(bytes));
  std::vector<RowMove> moves;
  std::vector<RowsView> here;
  size_t at = 0;
  for (const RowsView& view : rows) {
    moves.push_back(move_dense(view, slot->data() + at, view.type));
    here.push_back(RowsView::dense(slot->data() + at, view.type, view.tokens, view.heads, view.head_dim));
    at += line_rounded(dense_bytes(view));
  }
  if (!rows.empty()) TIERKV_RETURN_IF_ERROR(machine_->move_rows(moves, rows[0].head_dim));
  TIERKV_RETURN_IF_ERROR(machine_->wait());
  std::copy(here.begin(), here.end(), rows.begin());
  return slot;
}

Result<std::shared_ptr<const void>> DeviceAttention::bring(std::span<RowsView> rows) const {
  const auto lock = alone();
  return guarded("bring rows from the device", [&]() -> Result<std::shared_ptr<const void>> {
    if (rows.empty()) return std::shared_ptr<const void>();
    TIERKV_RETURN_IF_ERROR(machine_->enter());
    TIERKV_RETURN_IF_ERROR(machine_->follow(stream_of(rows[0])));
    TIERKV_RETURN_IF_ERROR(look_back(false));
    auto slot = brought(rows);
    const Status ended = slots_.end_call();
    (void)machine_->leave();
    if (!slot.ok()) return slot.status();
    TIERKV_RETURN_IF_ERROR(ended);
    return std::shared_ptr<const void>(*slot);
  });
}

Status DeviceAttention::send_results(const void* from, size_t bytes, void* to) const {
  TIERKV_ASSIGN_OR_RETURN(const std::shared_ptr<Slot> slot, slots_.take(bytes));
  std::memcpy(slot->data(), from, bytes);
  return machine_->send(static_cast<uint8_t*>(to), slot->data(), bytes);
}

Status DeviceAttention::put(const void* from, size_t bytes, void* to, void* ready) const {
  const auto lock = alone();
  return guarded("send results to the device", [&]() -> Status {
    TIERKV_RETURN_IF_ERROR(machine_->enter());
    TIERKV_RETURN_IF_ERROR(machine_->follow({true, ready}));
    const Status sent = send_results(from, bytes, to);
    const Status ended = slots_.end_call();
    (void)machine_->leave();
    return sent.ok() ? ended : sent;
  });
}

Usage DeviceAttention::usage() const {
  std::lock_guard lock(mutex_);
  look_at_gone();
  Usage out;
  out.only_bytes = mirror_.places().kept_bytes(), out.only_blocks = mirror_.places().kept_blocks();
  out.block_bytes = mirror_.places().bytes(), out.blocks = mirror_.places().blocks(), out.uploads = mirror_.uploads();
  out.scratch_bytes = standing_.bytes() + tails_.bytes() + hot_.size() + results_.size() + partials_.size() + counters_.size() +
                      query_rows_.size() + mass_list_.size() + mass_rows_.size() + tables_.bytes() + encoder_.bytes() +
                      prompts_.bytes() + prompt_queries_.size();
  out.device_bytes = machine_->bytes(), out.peak_bytes = machine_->most_bytes();
  out.launches = launches_, out.on_processor = on_processor_;
  return out;
}

DeviceAttention::Counts DeviceAttention::counts() const {
  std::lock_guard lock(mutex_);
  Counts out = counts_;
  out.areas_made = standing_.made(), out.rows_sent = tails_.rows_sent(), out.encoded = encoder_.encoded();
  out.encode_bytes = encoder_.bytes_sent();
  return out;
}

}  // namespace tierkv::cuda
