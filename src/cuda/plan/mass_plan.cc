#include "cuda/plan/mass_plan.h"

#include <algorithm>

#include "cuda/plan/seen_rows.h"

namespace tierkv::cuda {
namespace {

// Chunks that all warps of a thread block take in one turn, and turns of a thread block at most: its first rows wait for the query,
// and the last thread blocks should not be long.
constexpr uint64_t kTurnChunks = 16, kMostTurns = 8;

// A query is made ready for a view by every warp that takes rows of it. So a warp takes as many rows as there are, unless others
// had nothing to do then.
uint32_t rows_at_a_time(const MassPlan& plan, uint64_t warps) {
  for (const uint32_t chunk_rows : {256u, 128u, 64u, 32u}) {
    uint64_t chunks = 0;
    for (const ViewDesc& view : plan.views) chunks += view.begin < view.end ? chunks_of(view, chunk_rows) : 0;
    if (chunks >= warps) return chunk_rows;
  }
  return 16;
}

void add_segments(const MassInput& input, MassPlan& plan) {
  const uint64_t blocks = std::max(1u, input.multiprocessors);
  plan.chunk_rows = rows_at_a_time(plan, blocks * kTurnChunks);
  uint64_t all = 0;
  for (const ViewDesc& view : plan.views) all += view.begin < view.end ? chunks_of(view, plan.chunk_rows) : 0;
  const uint64_t most = kTurnChunks * std::clamp<uint64_t>(all / (2 * kTurnChunks * blocks), 1, kMostTurns);
  for (uint32_t t = 0; t < plan.tasks.size(); ++t) {
    const MassPlan::Task& task = plan.tasks[t];
    size_t row = task.first_row, first = task.first_view, first_row = row;
    uint64_t chunks = 0;
    const auto end_segment = [&](size_t end) {
      if (row != first_row) {
        plan.segments.push_back({t, static_cast<uint32_t>(first), static_cast<uint32_t>(end - first),
                                 static_cast<uint32_t>(first_row), input.tasks[t].first_row, 0, Path::general});
      }
      first = end, first_row = row, chunks = 0;
    };
    for (size_t v = task.first_view; v < task.first_view + task.views; ++v) {
      const ViewDesc& view = plan.views[v];
      if (view.begin == view.end) continue;
      const uint64_t more = chunks_of(view, plan.chunk_rows);
      if (chunks != 0 && chunks + more > most) end_segment(v);
      chunks += more, row += view.end - view.begin;
    }
    end_segment(task.first_view + task.views);
  }
}

// What the launch says of one view: all its rows, those that are not seen too.
const float* all_rows(const ViewDesc& desc, uint32_t rows, const float* mass, float (&out)[attn::kMaxViewRows]) {
  if (desc.begin == 0 && desc.end == rows) return mass;
  std::fill_n(out, rows, 0.0f);
  std::copy(mass, mass + (desc.end - desc.begin), out + desc.begin);
  return out;
}

// A view that the windows of all queries have passed: not even a count of rows that get little hears of it (attention.cc).
bool left_behind(const MassPlan& plan, const attn::BlockView& view, uint32_t earliest) {
  return plan.window && !view.ctx.positions &&
         uint64_t{view.ctx.first_position} + view.rows + plan.window <= uint64_t{earliest} + 1;
}

// The sums of one query, as it gave them: what most calls ask for.
void copy_rows(const MassPlan& plan, const MassPlan::Task& task, const float* mass, std::span<const attn::BlockView> views,
               float* sums) {
  mass += task.first_row;
  for (size_t v = 0; v < task.views; sums += views[v++].rows) {
    const ViewDesc& desc = plan.views[task.first_view + v];
    std::fill_n(sums, desc.begin, 0.0f);
    std::copy(mass, mass + (desc.end - desc.begin), sums + desc.begin);
    std::fill(sums + desc.end, sums + views[v].rows, 0.0f);
    mass += desc.end - desc.begin;
  }
}

}  // namespace

MassPlan make_mass_plan(const MassInput& input) {
  MassPlan plan;
  plan.window = input.params.window;
  size_t total = 0;
  for (const PlanTask& task : input.tasks) total += task.views.size();
  plan.views.reserve(total), plan.tasks.reserve(input.tasks.size());
  for (const PlanTask& task : input.tasks) {
    plan.tasks.push_back({plan.views.size(), task.views.size(), plan.rows});
    for (size_t v = 0; v < task.views.size(); ++v) {
      ViewDesc& desc = plan.views.emplace_back();
      desc.keys = task.placed[v].keys, desc.values = task.placed[v].values, desc.codec = task.placed[v].codec;
      desc.first_position = task.views[v].ctx.first_position;
      if (!limit_rows(input.params, task.position, task.views[v], desc, plan.masks)) desc.begin = desc.end = 0;
      plan.rows += desc.end - desc.begin;
    }
  }
  add_segments(input, plan);
  return plan;
}

void sum_up(const MassPlan& plan, std::span<const MassPlan::Task> tasks, const float* mass, std::span<const attn::BlockView> views,
            const uint32_t* positions, const attn::HeadMass& wanted) {
  if (tasks.size() == 1 && tasks[0].views != 0 && wanted.lanes.empty()) {
    return copy_rows(plan, tasks[0], mass, views.subspan(wanted.from), wanted.sums);
  }
  static const attn::MassLane plain;
  const std::span<const attn::MassLane> lanes = wanted.lanes.empty() ? std::span(&plain, 1) : wanted.lanes;
  std::fill_n(wanted.sums, lanes.size() * wanted.rows, 0.0f);
  std::vector<size_t> at(tasks.size());  // of the launch's rows
  for (size_t q = 0; q < tasks.size(); ++q) at[q] = tasks[q].first_row;
  const uint32_t earliest = tasks.empty() ? 0 : *std::min_element(positions, positions + tasks.size());
  float* sums = wanted.sums;
  for (size_t v = wanted.from; v < views.size(); sums += views[v++].rows) {
    if (left_behind(plan, views[v], earliest)) continue;
    for (size_t q = 0; q < tasks.size(); ++q) {
      if (tasks[q].views == 0) continue;  // nobody hears it
      const ViewDesc& desc = plan.views[tasks[q].first_view + v - wanted.from];
      float room[attn::kMaxViewRows];
      const float* const rows = all_rows(desc, views[v].rows, mass + at[q], room);
      attn::add_query(views[v], static_cast<uint32_t>(q), positions[q], rows, lanes, sums, wanted.rows);
      at[q] += desc.end - desc.begin;
    }
  }
}

}  // namespace tierkv::cuda
