// device_rows.cc — the part of DeviceAttention that is about the caller's own memory on the device: results that stay there, rows
// that come down, and what is only known later.
#include <cstring>

#include "attn/cpu_backend.h"
#include "base/guarded.h"
#include "cuda/device_attention.h"
#include "cuda/mass_beside.h"

namespace tierkv::cuda {

using attn::AttendWork;

Status DeviceAttention::look_back(bool all) const {
  Status found;
  while (!late_.empty()) {
    const Late late = late_.front();
    if (!all && !late.slot->reached()) break;
    late_.pop_front();
    if (late.slot->put) {
      if (Status waited = late.slot->mark->wait(); !waited.ok()) {
        late_.clear();
        return waited;
      }
    }
    for (size_t t = 0; t < late.tasks && found.ok(); ++t) {
      if (late.failed[t] == 0) continue;
      found =
          error(StatusCode::out_of_range, "an earlier call: queries of layer ", late.layer,
                " were not finite, or their scores left the range of the device's numbers; their results are zeros. Attend from "
                "host memory, which has more range");
    }
  }
  return found;
}

Status DeviceAttention::check() const {
  std::lock_guard lock(mutex_);
  return guarded("wait for the device", [&]() -> Status {
    TIERKV_RETURN_IF_ERROR(machine_->enter());
    TIERKV_RETURN_IF_ERROR(machine_->follow({}));
    TIERKV_RETURN_IF_ERROR(machine_->wait());
    return look_back(true);
  });
}

// Results of works on the device are there already, or on their way in one piece.
Status DeviceAttention::leave_results(const Works& batch, const Launch& launch, const Executor& run) const {
  const size_t d = launch.head_dim;
  bool asked = false;
  moves_.clear();
  for (size_t w = 0; w < batch.size(); ++w) {
    AttendWork& work = *batch[w];
    work.status = Status();
    asked |= work.lse || !work.mass.empty();
    if (rows_.out) continue;
    const RowsView from = RowsView::f32(launch.out + rows_.first[w] * d, work.queries.tokens, work.queries.heads, launch.head_dim);
    moves_.push_back(move_dense(from, work.out, DType::f32));
  }
  if (!moves_.empty()) TIERKV_RETURN_IF_ERROR(machine_->move_rows(moves_, launch.head_dim));
  return asked ? tell_mass(batch, launch, run) : Status();
}

// Somebody wants to know what rows receive, which the processor adds up: queries and sums come down.
Status DeviceAttention::tell_mass(const Works& batch, const Launch& launch, const Executor& run) const {
  const size_t d = launch.head_dim, queries = rows_.count * d * sizeof(float), sums = rows_.count * sizeof(float);
  TIERKV_ASSIGN_OR_RETURN(const std::shared_ptr<Slot> slot, slots_.take(queries + sums));
  TIERKV_RETURN_IF_ERROR(machine_->fetch(slot->data(), query_rows_.data(), queries));
  TIERKV_RETURN_IF_ERROR(machine_->fetch(slot->data() + queries, reinterpret_cast<const uint8_t*>(launch.lse), sums));
  TIERKV_RETURN_IF_ERROR(machine_->wait());
  const auto* const rows = reinterpret_cast<const float*>(slot->data());
  const auto* const lse = rows + rows_.count * d;
  for (size_t w = 0; w < batch.size(); ++w) {
    AttendWork& work = *batch[w];
    const size_t first = rows_.first[w];
    if (work.lse) std::memcpy(work.lse, lse + first, size_t{work.queries.tokens} * work.queries.heads * sizeof(float));
    if (work.mass.empty()) continue;
    const RowsView there =
        std::exchange(work.queries, RowsView::f32(rows + first * d, work.queries.tokens, work.queries.heads, launch.head_dim));
    work.status = add_mass_beside(work, lse + first, run);
    work.queries = there;
  }
  return {};
}

// What the device does not do. Its queries come down and its results go up again where the caller has them there.
void DeviceAttention::on_processor(AttendWork& work, const Executor& run) const {
  ++on_processor_;
  if (work.queries.place == MemoryPlace::host) {
    attn::cpu_backend().attend({&work, 1}, run);
    return;
  }
  const RowsView queries = work.queries;
  float* const out = work.out;
  Status status = guarded("attend on the processor", [&]() -> Status {
    TIERKV_RETURN_IF_ERROR(machine_->follow(stream_of(queries)));
    TIERKV_ASSIGN_OR_RETURN(const std::shared_ptr<Slot> slot, brought({&work.queries, 1}));
    std::vector<float> results(out ? size_t{queries.tokens} * queries.heads * queries.head_dim : 0);
    work.out = out ? results.data() : nullptr;
    attn::cpu_backend().attend({&work, 1}, run);
    if (!work.status.ok() || !out) return work.status;
    return send_results(results.data(), results.size(), out);
  });
  const Status ended = slots_.end_call();
  work.queries = queries, work.out = out;
  work.status = status.ok() ? ended : std::move(status);
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
  std::lock_guard lock(mutex_);
  return guarded("bring rows from the device", [&]() -> Result<std::shared_ptr<const void>> {
    if (rows.empty()) return std::shared_ptr<const void>();
    TIERKV_RETURN_IF_ERROR(machine_->enter());
    TIERKV_RETURN_IF_ERROR(look_back(false));
    TIERKV_RETURN_IF_ERROR(machine_->follow(stream_of(rows[0])));
    auto slot = brought(rows);
    const Status ended = slots_.end_call();
    (void)machine_->leave();
    if (!slot.ok()) return slot.status();
    TIERKV_RETURN_IF_ERROR(ended);
    return std::shared_ptr<const void>(*slot);
  });
}

Status DeviceAttention::send_results(const float* from, size_t count, float* to) const {
  TIERKV_ASSIGN_OR_RETURN(const std::shared_ptr<Slot> slot, slots_.take(count * sizeof(float)));
  std::memcpy(slot->data(), from, count * sizeof(float));
  return machine_->send(reinterpret_cast<uint8_t*>(to), slot->data(), count * sizeof(float));
}

Status DeviceAttention::put(const float* from, size_t count, float* to, void* ready) const {
  std::lock_guard lock(mutex_);
  return guarded("send results to the device", [&]() -> Status {
    TIERKV_RETURN_IF_ERROR(machine_->enter());
    TIERKV_RETURN_IF_ERROR(machine_->follow({true, ready}));
    const Status sent = send_results(from, count, to);
    const Status ended = slots_.end_call();
    (void)machine_->leave();
    return sent.ok() ? ended : sent;
  });
}

Usage DeviceAttention::usage() const {
  std::lock_guard lock(mutex_);
  Usage out;
  out.block_bytes = mirror_.places().bytes(), out.blocks = mirror_.places().blocks(), out.uploads = mirror_.uploads();
  out.scratch_bytes = standing_.bytes() + tails_.bytes() + hot_.size() + results_.size() + partials_.size() + counters_.size() +
                      query_rows_.size() + tables_.bytes();
  out.device_bytes = machine_->bytes(), out.peak_bytes = machine_->most_bytes();
  out.launches = launches_, out.on_processor = on_processor_;
  return out;
}

DeviceAttention::Counts DeviceAttention::counts() const {
  std::lock_guard lock(mutex_);
  Counts out = counts_;
  out.areas_made = standing_.made(), out.rows_sent = tails_.rows_sent();
  return out;
}

}  // namespace tierkv::cuda
