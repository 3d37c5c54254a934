// device_mass.cc — DeviceAttention's answers to who asks what rows receive (attn/mass.h): the device adds it up behind its
// attention (mass.h), and what it has no room for the processor, beside it (mass_beside.h).
#include <cstring>

#include "cuda/device_attention.h"
#include "cuda/mass/mass_beside.h"

namespace tierkv::cuda {

using attn::AttendWork;

// The places of a head's views from `from` on, in their order: settled ones stand, the others are listed in this call.
void DeviceAttention::place_weighed(const Listed& listed, size_t from, size_t views, std::vector<Placed>& out) const {
  out.reserve(views - from);
  const size_t settled = listed.area ? listed.area->seen.size() : 0;
  size_t next = 0;  // of those that are listed
  for (size_t v = 0; v < views; ++v) {
    const bool stands = v < settled && listed.area->seen[v].held;
    if (v >= from) {
      const ViewDesc* const desc = stands ? &listed.area->seen[v].desc : nullptr;
      out.push_back(desc ? Placed{desc->keys, desc->values, desc->codec} : listed.placed[next]);
    }
    next += !stands;
  }
}

// Behind attention, whose sums it reads; nobody waits in between.
Status DeviceAttention::ask_mass(const Works& batch, const Launch& attention) const {
  mass_.asked = false, mass_.first.clear();
  if (!mass_.there) return {};
  const AttendWork& shape = *batch.front();
  std::vector<PlanTask> tasks;
  std::deque<std::vector<Placed>> placed;
  size_t list = 0;
  for (size_t w = 0; w < batch.size(); ++w) {
    const AttendWork& work = *batch[w];
    mass_.first.push_back(tasks.size());
    for (size_t h = 0; h < work.heads.size(); ++h, ++list) {
      if (work.mass.empty()) continue;
      const attn::HeadMass& wanted = work.mass[h];
      std::vector<Placed>& places = placed.emplace_back();
      place_weighed(listed_[list], wanted.from, work.heads[h].size(), places);
      for (uint32_t q = 0; q < work.queries.tokens; ++q) {
        PlanTask& task = tasks.emplace_back();
        task.position = work.positions[q];
        task.first_row = static_cast<uint32_t>(rows_.first[w] + size_t{q} * work.queries.heads + h * attention.group);
        if (wanted.hears(q, q + 1)) task.views = work.heads[h].subspan(wanted.from), task.placed = places;
      }
    }
  }
  if (tasks.empty()) return {};
  mass_.plan = make_mass_plan({tasks, shape.params, facts_.multiprocessors});
  const Status launched = mass_.plan.rows > kMostMassRows ? error(StatusCode::resource_exhausted, "more rows than a launch says")
                                                          : launch_mass(attention);
  mass_.asked = launched.ok();
  // Without memory for the sums the processor adds them up.
  return launched.code() == StatusCode::resource_exhausted ? Status() : launched;
}

Status DeviceAttention::launch_mass(const Launch& attention) const {
  const MassPlan& plan = mass_.plan;
  if (plan.segments.empty()) return {};  // no query sees any of the rows
  const size_t segments = line_rounded(plan.views.size() * sizeof(ViewDesc));
  const size_t masks = segments + line_rounded(plan.segments.size() * sizeof(SegmentDesc));
  const size_t bytes = masks + plan.masks.size() * sizeof(uint32_t);
  TIERKV_RETURN_IF_ERROR(mass_list_.reserve(bytes));
  TIERKV_RETURN_IF_ERROR(mass_rows_.reserve(plan.rows * sizeof(float)));
  TIERKV_RETURN_IF_ERROR(mass_host_.reserve(plan.rows * sizeof(float)));
  TIERKV_ASSIGN_OR_RETURN(const std::shared_ptr<Slot> slot, slots_.take(bytes));
  std::memcpy(slot->data(), plan.views.data(), plan.views.size() * sizeof(ViewDesc));
  std::memcpy(slot->data() + segments, plan.segments.data(), plan.segments.size() * sizeof(SegmentDesc));
  if (!plan.masks.empty()) std::memcpy(slot->data() + masks, plan.masks.data(), plan.masks.size() * sizeof(uint32_t));
  TIERKV_RETURN_IF_ERROR(machine_->send(mass_list_.data(), slot->data(), bytes));
  MassLaunch launch;
  launch.launch = attention;
  launch.launch.views = reinterpret_cast<const ViewDesc*>(mass_list_.data());
  launch.launch.segments = reinterpret_cast<const SegmentDesc*>(mass_list_.data() + segments);
  launch.launch.masks = reinterpret_cast<const uint32_t*>(mass_list_.data() + masks);
  launch.launch.ctas = static_cast<uint32_t>(plan.segments.size()), launch.launch.chunk_rows = plan.chunk_rows;
  launch.mass = reinterpret_cast<float*>(mass_rows_.data());
  counts_.weighed_rows += plan.rows;
  TIERKV_RETURN_IF_ERROR(machine_->weigh(launch));
  return machine_->fetch(mass_host_.data(), mass_rows_.data(), plan.rows * sizeof(float));
}

// REQUIRES: what was asked for is there. `lse`: the work's, in host memory, and so are its queries unless the device was asked.
Status DeviceAttention::tell_mass(const AttendWork& work, size_t index, const float* lse, const Executor& run) const {
  if (!mass_.asked) {
    if (work.land) TIERKV_RETURN_IF_ERROR(work.land());
    return add_mass_near(work, lse, run);
  }
  const auto* const mass = reinterpret_cast<const float*>(mass_host_.data());
  const std::span<const MassPlan::Task> tasks = std::span(mass_.plan.tasks).subspan(mass_.first[index]);
  run(static_cast<uint32_t>(work.heads.size()), [&](uint32_t h) {
    const std::span<const MassPlan::Task> of = tasks.subspan(size_t{h} * work.queries.tokens, work.queries.tokens);
    sum_up(mass_.plan, of, mass, work.heads[h], work.positions, work.mass[h]);
  });
  return {};
}

}  // namespace tierkv::cuda
