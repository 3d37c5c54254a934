// mass_plan.h — from what is asked about rows (attn/mass.h) to what a launch reads (mass.h), and from what the launch wrote to the
// sums that were asked for. Host code, no device needed.
//
// A device says what each query gave each row. Lanes are weights and counts of that, which the host adds up when it looks at every
// row anyway.
// Errors:   none. Throws std::bad_alloc.
#pragma once

#include <span>
#include <vector>

#include "attn/mass.h"
#include "cuda/plan/plan.h"

namespace tierkv::cuda {

// What a launch may say at most: floats, which are fetched in one piece.
inline constexpr size_t kMostMassRows = size_t{64} << 20;

// One query of one KV head: PlanTask without settled views. `views`: those that are asked about, none where nobody hears the query.
struct MassInput {
  std::span<const PlanTask> tasks;
  attn::AttendParams params;
  uint32_t multiprocessors = 1;
};

struct MassPlan {
  std::vector<ViewDesc> views;  // one each of every task, and with no rows where the query sees none
  std::vector<uint32_t> masks;
  std::vector<SegmentDesc> segments;
  struct Task {
    size_t first_view = 0, views = 0, first_row = 0;  // `first_row` of what the launch writes
  };
  std::vector<Task> tasks;
  size_t rows = 0;           // that the launch writes: views' begin to end - 1, one behind the other
  uint32_t chunk_rows = 64;  // that a warp takes at a time
  uint32_t window = 0;       // AttendParams'
};

MassPlan make_mass_plan(const MassInput& input);

// What queries gave the rows of one head, as its lanes want it. `tasks`: of the plan, one a query; `mass`: what the launch wrote.
void sum_up(const MassPlan& plan, std::span<const MassPlan::Task> tasks, const float* mass, std::span<const attn::BlockView> views,
            const uint32_t* positions, const attn::HeadMass& wanted);

}  // namespace tierkv::cuda
