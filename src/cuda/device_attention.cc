#include "cuda/device_attention.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "attn/cpu_backend.h"
#include "attn/rows.h"
#include "base/guarded.h"
#include "cuda/launch/better.h"
#include "cuda/plan/device_form.h"
#include "cuda/works.h"

namespace tierkv::cuda {

using attn::AttendWork;

namespace {

const attn::Backend& cpu() { return attn::cpu_backend(); }

// What is known of a head, if descriptors of it may be kept: a window moves with every query.
const attn::Settled* settled_of(const AttendWork& work, size_t head) {
  if (head >= work.settled.size() || work.params.window != 0) return nullptr;
  const attn::Settled& settled = work.settled[head];
  return settled.version != 0 && settled.views != 0 ? &settled : nullptr;
}

bool sees_all(const AttendWork& work, const Standing::Area& area) {
  return !work.params.causal || std::all_of(work.positions, work.positions + work.queries.tokens,
                                            [&](uint32_t position) { return position >= area.last_position; });
}

// Of a parcel that the kernel for rows fetches from host memory.
constexpr size_t kMostByMoves = size_t{48} << 10;

bool overflowed(const AttendWork& work) { return work.status.code() == StatusCode::out_of_range; }

}  // namespace

DeviceAttention::DeviceAttention(std::unique_ptr<Machine> machine, uint64_t byte_limit, size_t few_rows, bool keep_on_host)
    : machine_(std::move(machine)),
      facts_(machine_->facts()),
      few_rows_(few_rows),
      keep_on_host_(keep_on_host),
      slots_(machine_),
      bounce_(*machine_),
      tables_(*machine_),
      changes_(*machine_),
      mirror_(*machine_, bounce_, changes_, byte_limit, !keep_on_host),
      standing_(*machine_, bounce_, mirror_, tables_),
      tails_(*machine_, slots_, changes_),
      encoder_(*machine_),
      hot_(*machine_),
      results_(*machine_),
      partials_(*machine_),
      counters_(*machine_),
      query_rows_(*machine_),
      results_host_(*machine_),
      mass_list_(*machine_),
      mass_rows_(*machine_),
      mass_host_(*machine_),
      prompts_(*machine_, tables_),
      prompt_queries_(*machine_),
      prompt_host_(*machine_) {}

Status DeviceAttention::accepts(const RowsView& rows, const char* what) const {
  return rows.place == MemoryPlace::device ? Status() : cpu().accepts(rows, what);
}
void DeviceAttention::encode(std::span<attn::EncodeWork> blocks, const Executor& run) const {
  std::lock_guard lock(mutex_);  // aside: what is pending stays so
  encoder_.encode(blocks, run, &tails_, &mirror_);
}
void DeviceAttention::decode(std::span<const attn::DecodeWork> blocks, const Executor& run) const { cpu().decode(blocks, run); }

void DeviceAttention::attend(std::span<AttendWork> works, const Executor& run) const {
  std::lock_guard lock(mutex_);
  const bool step = !works.empty() && works[0].step;
  // Behind rows that were just taken all of this is done already.
  const bool goes_on = pending_.gate && !step && !works.empty() && stream_of(works[0].queries) == pending_.stream;
  if (!goes_on) ask_for_pending(true);
  if (step) return attend_in_step(works);
  ++others_;
  look_at_gone();
  // First of all the stream: while it is captured nothing else may be asked of the device.
  Status entered = goes_on ? Status() : machine_->enter();
  if (entered.ok() && !goes_on && !works.empty()) entered = machine_->follow(stream_of(works[0].queries));
  if (entered.ok() && !goes_on) entered = look_back(false);
  if (!entered.ok()) {
    for (AttendWork& work : works) work.status = entered;
    return;
  }
  Works batch;
  mass_.there = most_rows_asked(works) > few_rows_;
  for (AttendWork& work : works) {
    const bool served = serves(work);
    work.status = land_if_read(work, served);
    if (!work.status.ok()) continue;
    if (!served) {
      on_processor(work, run);
      continue;
    }
    if (!batch.empty() && !same_shape(*batch.front(), work)) attend_batch(batch, run);
    batch.push_back(&work);
  }
  attend_batch(batch, run);
  ask_for_pending(false);
  (void)machine_->leave();
  refusals_.store(mirror_.places().refusals(), std::memory_order_relaxed);
}

bool DeviceAttention::serves(const AttendWork& work) const {
  if (work.params.weigh_only || work.whole) return false;
  if (work.queries.tokens == 0) return false;
  if (is_prompt(work) && !(work.params.scale > 0.0f)) return false;
  if (work.heads.empty() || group_of(work) > kMostGroup || work.params.head_dim > 256) return false;
  for (size_t h = 0; h < work.heads.size(); ++h) {
    const attn::Settled* const settled = settled_of(work, h);
    const size_t known = settled && standing_.find(*settled, group_of(work)) ? settled->views : 0;
    for (const attn::BlockView& view : work.heads[h].subspan(known)) {
      if (!tables_.find(*view.key_codec, *view.value_codec).ok()) return false;
    }
  }
  return true;
}

void DeviceAttention::attend_batch(Works& batch, const Executor& run) const {
  if (batch.empty()) return;
  Status status = guarded("attend on the device", [&]() -> Status {
    if (is_prompt(*batch.front())) ask_for_pending(false);
    return is_prompt(*batch.front()) ? prompts_on_device(batch, run) : on_device(batch, run);
  });
  if (!pending_.moves.empty()) ask_for_pending(false);  // it did not come to them
  const Status ended = slots_.end_call();
  if (pending_.gate) pending_is_asked_for(ended);
  if (status.ok()) status = ended;
  if (!status.ok()) (void)machine_->wait();  // what is on its way comes from memory that the next call writes over
  changes_.end_call(status.ok() && batch.front()->queries.place == MemoryPlace::host);  // whose results were waited for
  for (AttendWork* work : batch) {
    if (!status.ok()) work->status = status;
    else if (overflowed(*work)) again_on_processor(*work, run);
  }
  batch.clear();
}

// Halves have less range than the processor's floats.
void DeviceAttention::again_on_processor(AttendWork& work, const Executor& run) const {
  work.status = land(work);
  if (!work.status.ok()) return;
  on_processor(work, run);
}

Status DeviceAttention::on_device(const Works& batch, const Executor& run) const {
  mirror_.places().begin_call();
  standing_.begin_call();
  const AttendWork& first = *batch.front();
  const uint32_t d = first.params.head_dim;
  TIERKV_RETURN_IF_ERROR(list_views(batch));
  TIERKV_RETURN_IF_ERROR(place_tails(batch));
  TIERKV_RETURN_IF_ERROR(place_loose_rows());
  place_rows(batch);
  TIERKV_RETURN_IF_ERROR(collect(batch));
  Plan plan = plan_for(first, standing_.base());
  Launch launch = launch_of(plan, first);
  const uint32_t base = standing_.base();
  TIERKV_RETURN_IF_ERROR(send(plan, first, launch));
  if (standing_.base() != base) {  // the settled views lie elsewhere now
    ++counts_.planned_again;
    plan = plan_for(first, standing_.base());
    launch = launch_of(plan, first);
    TIERKV_RETURN_IF_ERROR(send(plan, first, launch));
  }
  TIERKV_RETURN_IF_ERROR(make_room(plan, rows_.count, launch));
  if (rows_.there) {
    moves_.insert(moves_.end(), pending_.moves.begin(), pending_.moves.end());
    TIERKV_RETURN_IF_ERROR(machine_->move_rows(moves_, d));
    pending_.moves.clear();
  }
  ++launches_;
  counts_.listed_views = plan.views.size();
  TIERKV_RETURN_IF_ERROR(machine_->attend(launch, plan));
  TIERKV_RETURN_IF_ERROR(ask_mass(batch, launch));
  return rows_.there ? leave_results(batch, launch, run) : take_results(batch, plan.tasks.size(), launch, run);
}

Status DeviceAttention::list_views(const Works& batch) const {
  size_t heads = 0;
  for (const AttendWork* work : batch) heads += work->heads.size();
  if (listed_.size() < heads) listed_.resize(heads);
  for (Listed& listed : listed_) listed.views.clear(), listed.placed.clear(), listed.area = nullptr, listed.behind = 0;
  size_t at = 0;
  for (const AttendWork* work : batch) {
    for (size_t h = 0; h < work->heads.size(); ++h) TIERKV_RETURN_IF_ERROR(list_head(*work, h, listed_[at++]));
  }
  return {};
}

// Sealed blocks are found or copied. Rows that may still change have no place yet.
Status DeviceAttention::list_head(const AttendWork& work, size_t head, Listed& out) const {
  const std::span<const attn::BlockView> views = work.heads[head];
  size_t from = 0;
  if (const attn::Settled* const settled = settled_of(work, head)) {
    TIERKV_ASSIGN_OR_RETURN(const Standing::Area* const area, standing_.area(*settled, views, group_of(work)));
    if (sees_all(work, *area)) {
      out.area = area;
      from = settled->views;
      for (const uint32_t v : area->loose) out.views.push_back(views[v]);
    }
  }
  out.views.insert(out.views.end(), views.begin() + static_cast<ptrdiff_t>(from), views.end());
  for (const attn::BlockView& view : out.views) {
    TIERKV_ASSIGN_OR_RETURN(const uint32_t codec, tables_.find(*view.key_codec, *view.value_codec));
    Placed& placed = out.placed.emplace_back();
    placed.codec = codec;
    if (view.sealed == 0) continue;
    TIERKV_ASSIGN_OR_RETURN(const Places::Entry* const entry, standing_.place(view, tables_.on_host()[codec]));
    placed.keys = entry->keys, placed.values = entry->values;
  }
  const size_t settled = head < work.settled.size() ? work.settled[head].views : 0;
  out.behind = static_cast<uint32_t>(out.views.size() - (views.size() - settled));
  return {};
}

Status DeviceAttention::place_tails(const Works& batch) const {
  size_t staged = 0, at = 0;
  for (const AttendWork* work : batch) staged += tails_.staged_bytes(*work);
  TIERKV_RETURN_IF_ERROR(tails_.begin_call(staged));
  for (const AttendWork* work : batch) {
    TIERKV_ASSIGN_OR_RETURN(const Tails::Strip* const strip, tails_.place(*work));
    for (size_t h = 0; h < work->heads.size(); ++h, ++at) {
      Listed& listed = listed_[at];
      for (size_t v = listed.behind; strip && v < listed.views.size(); ++v) {
        const uint32_t position = listed.views[v].ctx.first_position;
        listed.placed[v].keys = strip->keys(h, position), listed.placed[v].values = strip->values(h, position);
      }
    }
  }
  return {};
}

// Rows that nothing is known of go into one buffer of this call.
Status DeviceAttention::place_loose_rows() const {
  const auto each = [&](const auto& f) {
    for (Listed& listed : listed_) {
      for (size_t v = 0; v < listed.views.size(); ++v) {
        if (!listed.placed[v].keys) f(listed.views[v], listed.placed[v]);
      }
    }
  };
  size_t bytes = 0, at = 0;
  each([&](const attn::BlockView& view, const Placed& placed) {
    const CodecDesc& codec = tables_.on_host()[placed.codec];
    bytes += line_rounded(codec.key_better ? device_bytes(codec.key, codec.key_better) : view.keys.size());
    bytes += line_rounded(codec.value_better ? device_bytes(codec.value, codec.value_better) : view.values.size());
  });
  if (bytes == 0) return {};
  TIERKV_RETURN_IF_ERROR(hot_.reserve(bytes));
  TIERKV_ASSIGN_OR_RETURN(const std::shared_ptr<Slot> slot, slots_.take(bytes));
  each([&](const attn::BlockView& view, Placed& placed) {
    const CodecDesc& codec = tables_.on_host()[placed.codec];
    const auto add = [&](const quant::Codec& of, const quant::SideLayout& side, std::span<const std::byte> bytes_of) {
      const std::span<const std::byte> rows = device_form(of, side, bytes_of, form_);
      std::memcpy(slot->data() + at, rows.data(), rows.size());
      return hot_.data() + std::exchange(at, at + line_rounded(rows.size()));
    };
    placed.keys = add(*view.key_codec, codec.key, view.keys);
    placed.values = add(*view.value_codec, codec.value, view.values);
    counts_.loose_rows += view.rows;
  });
  return machine_->send(hot_.data(), slot->data(), bytes);
}

// Where each work's rows of queries and results are. Outputs that lie one behind the other, in whatever order, are one piece, and
// results go straight there.
void DeviceAttention::place_rows(const Works& batch) const {
  rows_ = {};
  rows_.there = batch.front()->queries.place == MemoryPlace::device;
  std::vector<size_t> order(batch.size());
  std::iota(order.begin(), order.end(), 0);
  if (rows_.there) {
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return std::less<>()(batch[a]->out, batch[b]->out); });
    bool one = reinterpret_cast<uintptr_t>(batch[order[0]]->out) % 16 == 0;
    for (size_t i = 1; i < order.size(); ++i) {
      const AttendWork& before = *batch[order[i - 1]];
      one = one && out_bytes(*batch[order[i]]) == out_bytes(before) + out_size(before);
    }
    if (one) rows_.out = batch[order[0]]->out;
  }
  rows_.first.resize(batch.size());
  for (const size_t i : order) {
    rows_.first[i] = rows_.count;
    rows_.count += size_t{batch[i]->queries.tokens} * batch[i]->queries.heads;
  }
}

Status DeviceAttention::collect(const Works& batch) const {
  const uint32_t d = batch.front()->params.head_dim, group = group_of(*batch.front());
  tasks_.clear();
  moves_.clear();
  queries_.resize(rows_.there ? 0 : rows_.count * d);
  if (rows_.there) TIERKV_RETURN_IF_ERROR(query_rows_.reserve(rows_.count * d * sizeof(float)));
  size_t list = 0;
  for (size_t w = 0; w < batch.size(); ++w) {
    const AttendWork* const work = batch[w];
    const size_t first = rows_.first[w];
    if (rows_.there) {
      moves_.push_back(move_dense(work->queries, reinterpret_cast<float*>(query_rows_.data()) + first * d, DType::f32));
    } else {
      float* to = queries_.data() + first * d;
      for (uint32_t q = 0; q < work->queries.tokens; ++q) {
        for (uint32_t h = 0; h < work->queries.heads; ++h, to += d) attn::widen_row(work->queries, q, h, to);
      }
    }
    for (uint32_t h = 0; h < work->heads.size(); ++h, ++list) {
      const Listed& listed = listed_[list];
      for (uint32_t q = 0; q < work->queries.tokens; ++q) {
        const auto row = static_cast<uint32_t>(first + static_cast<size_t>(q) * work->queries.heads + h * group);
        PlanTask& task = tasks_.emplace_back();
        task.views = listed.views, task.placed = listed.placed;
        task.position = work->positions[q], task.first_row = row, task.first_head = h * group;
        if (listed.area) task.settled = listed.area->runs;
      }
    }
  }
  return {};
}

void DeviceAttention::Parcel::write(uint8_t* to) const {
  for (const auto& [at, part] : parts) {
    if (!part.empty()) std::memcpy(to + at, part.data(), part.size());
  }
}

void DeviceAttention::Parcel::point(const uint8_t* at, Launch& launch) const {
  launch.views = reinterpret_cast<const ViewDesc*>(at);
  launch.masks = reinterpret_cast<const uint32_t*>(at + masks);
  launch.segments = reinterpret_cast<const SegmentDesc*>(at + segments);
  launch.tasks = reinterpret_cast<const TaskDesc*>(at + tasks);
  launch.cta_begin = reinterpret_cast<const uint32_t*>(at + ctas);
  launch.queries = reinterpret_cast<const float*>(at + rows);
  launch.sink_logits = sinks != 0 ? reinterpret_cast<const float*>(at + sinks) : nullptr;
}

DeviceAttention::Parcel DeviceAttention::parcel_of(const Plan& plan, const AttendWork& first) const {
  Parcel parcel;
  const auto add = [&](const auto& from) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(from));
    parcel.parts.emplace_back(parcel.add(bytes.size()), bytes);
    return parcel.parts.back().first;
  };
  add(plan.views);  // the first of the list
  parcel.masks = add(plan.masks), parcel.segments = add(plan.segments);
  parcel.tasks = add(plan.tasks), parcel.ctas = add(plan.cta_begin), parcel.rows = add(queries_);
  if (first.sink_logits) parcel.sinks = add(std::span(first.sink_logits, first.queries.heads));
  return parcel;
}

Launch DeviceAttention::launch_of(const Plan& plan, const AttendWork& first) const {
  Launch launch;
  launch.head_dim = first.params.head_dim, launch.group = group_of(first);
  launch.scale = first.params.scale, launch.softcap = first.params.softcap;
  // What is not in one piece lies in results_ as floats before it is moved.
  launch.out_type = rows_.out ? static_cast<uint8_t>(first.out_type) : 0;
  take_blocks(plan, launch);
  return launch;
}

Plan DeviceAttention::plan_for(const AttendWork& first, uint32_t settled_base) const {
  return make_plan({tables_.on_host(), tasks_, first.params, group_of(first), facts_.multiprocessors, facts_.tensor_paths,
                    settled_base, &sharings_, tables_.on_device()});
}

Status DeviceAttention::send(const Plan& plan, const AttendWork& first, Launch& launch) const {
  Parcel parcel = parcel_of(plan, first);
  counts_.parcel_bytes = parcel.bytes;
  // A small one goes with the queries, in whole rows: a copy of its own would be one more thing to ask for, and to wait for there.
  const size_t row = first.params.head_dim * sizeof(float);
  const bool by_moves = rows_.there && parcel.bytes <= kMostByMoves;
  if (by_moves) parcel.bytes = (parcel.bytes + row - 1) / row * row;
  const uint32_t base = standing_.base();
  TIERKV_RETURN_IF_ERROR(standing_.reserve_front(parcel.bytes));
  if (standing_.base() != base) return {};
  TIERKV_RETURN_IF_ERROR(standing_.send_areas());
  TIERKV_ASSIGN_OR_RETURN(launch.codecs, tables_.there());
  const size_t sent = parcel.bytes;
  const size_t flags = rows_.there ? parcel.add(plan.tasks.size() * sizeof(uint32_t)) : 0;
  TIERKV_ASSIGN_OR_RETURN(const std::shared_ptr<Slot> slot, slots_.take(parcel.bytes));
  parcel.write(slot->data());
  if (rows_.there) {  // the device writes them from afar, where there is something to say
    launch.failed = reinterpret_cast<uint32_t*>(slot->data() + flags);
    std::fill_n(launch.failed, plan.tasks.size(), 0u);
    late_.push_back({slot, launch.failed, plan.tasks.size(), layer_of(first)});
  }
  parcel.point(standing_.data(), launch);
  if (rows_.there) launch.queries = reinterpret_cast<const float*>(query_rows_.data());
  if (!by_moves) return machine_->send(standing_.data(), slot->data(), sent);
  RowMove& move = moves_.emplace_back();
  move.from = slot->data(), move.to = standing_.data();
  move.tokens = 1, move.heads = static_cast<uint32_t>(sent / row);
  move.from_head = move.to_head = first.params.head_dim;
  return {};
}

Status DeviceAttention::reserve_room(const Plan& plan, size_t rows, const Launch& launch) const {
  const size_t states = static_cast<size_t>(plan.partials) * launch.group, d = launch.head_dim;
  TIERKV_RETURN_IF_ERROR(partials_.reserve(states * (d + 2) * sizeof(float)));
  TIERKV_RETURN_IF_ERROR(counters_.reserve((2 + plan.tasks.size()) * sizeof(uint32_t)));  // zeros, which a launch leaves
  return results_.reserve((rows * (d + 1) + plan.tasks.size()) * sizeof(float));
}

void DeviceAttention::use_room(const Plan& plan, size_t rows, float* out, Launch& launch) const {
  const size_t states = static_cast<size_t>(plan.partials) * launch.group, d = launch.head_dim;
  launch.partial_out = reinterpret_cast<float*>(partials_.data());
  launch.partial_top = launch.partial_out + states * d;
  launch.partial_sum = launch.partial_top + states;
  launch.given = reinterpret_cast<uint32_t*>(counters_.data());
  launch.arrived = launch.given + 2;
  launch.out = out ? out : reinterpret_cast<float*>(results_.data());
  launch.lse = reinterpret_cast<float*>(results_.data()) + rows * d;
}

Status DeviceAttention::make_room(const Plan& plan, size_t rows, Launch& launch) const {
  TIERKV_RETURN_IF_ERROR(reserve_room(plan, rows, launch));
  use_room(plan, rows, rows_.out, launch);
  if (rows_.there) return {};
  launch.failed = reinterpret_cast<uint32_t*>(launch.lse + rows);
  return machine_->clear(reinterpret_cast<uint8_t*>(launch.failed), plan.tasks.size() * sizeof(uint32_t));
}

Status DeviceAttention::take_results(const Works& batch, size_t tasks, const Launch& launch, const Executor& run) const {
  const size_t d = launch.head_dim, rows = rows_.count, bytes = (rows * (d + 1) + tasks) * sizeof(float);
  TIERKV_RETURN_IF_ERROR(results_host_.reserve(bytes));
  TIERKV_RETURN_IF_ERROR(machine_->fetch(results_host_.data(), results_.data(), bytes));
  TIERKV_RETURN_IF_ERROR(machine_->wait());
  const auto* out = reinterpret_cast<const float*>(results_host_.data());
  const float* lse = out + rows * d;
  const auto* failed = reinterpret_cast<const uint32_t*>(lse + rows);
  for (size_t w = 0; w < batch.size(); ++w) {
    AttendWork* const work = batch[w];
    const size_t count = static_cast<size_t>(work->queries.tokens) * work->queries.heads;
    std::memcpy(work->out, out, count * d * sizeof(float));
    if (work->lse) std::memcpy(work->lse, lse, count * sizeof(float));
    work->status = Status();
    for (size_t t = 0; t < work->heads.size() * work->queries.tokens; ++t) {
      if (failed[t]) work->status = error(StatusCode::out_of_range, "scores left the range of the device's numbers");
    }
    if (!work->mass.empty() && work->status.ok()) work->status = tell_mass(*work, w, lse, run);
    out += count * d, lse += count, failed += work->heads.size() * work->queries.tokens;
  }
  return {};
}

}  // namespace tierkv::cuda
