// plan.h — from views and queries to what a launch reads (desc.h): which rows a query sees, which way each view is read, and equal
// pieces of work. Host code, no device needed.
//
// Split:    each task's views are cut into pieces of equal cost (bytes, and a fixed part each), and the pieces shared out among
//           `ctas` thread blocks (share_out.h). The first `general_ctas` have pieces of the general path, `staged_ctas` more a
//           small piece each of the staged one, the others pieces of the fast one: kernels side by side. Where a few
//           multiprocessors can do the staged pieces meanwhile, the fast ones leave them free.
// Path:     of the fast paths that a launch's views could take, the one that covers most bytes is the launch's. Other views are
//           warm blocks or plain rows or staged where they can be, and read in the general way where not: klt's blocks with dead
//           rows, better rows, several scales a row.
// Settled:  views that lie in the reader's list already, from an earlier call (standing.h), are planned run by run, however many
//           they are; few of them that have no fast path are listed again, beside the others of their task.
// Errors:   none: what a device cannot read is refused before (readable()). Throws std::bad_alloc.
#pragma once

#include <span>
#include <vector>

#include "attn/attention.h"
#include "cuda/launch/desc.h"
#include "cuda/plan/paths.h"
#include "cuda/plan/share_out.h"

namespace tierkv::cuda {

// Where the bytes of one view are for the reader.
struct Placed {
  const uint8_t* keys = nullptr;
  const uint8_t* values = nullptr;
  uint32_t codec = 0;  // index into PlanInput::codecs
};

// A run of views that lie in the reader's list already. Whole blocks of one codec that a fast path or the warm one could take,
// views that can be staged, in one frame, or any others.
struct SettledRun {
  uint32_t codec = 0;               // of the first view; with a fast path, of all
  Path path = Path::general;        // that they could take
  uint32_t first = 0, views = 0;    // in the list, from PlanInput::settled_base on
  const ViewDesc* descs = nullptr;  // the same for the host
  uint64_t chunks[3] = {};          // of 16, 32 and 64 rows that they have
  uint64_t bytes = 0;               // of keys and values
};

// One query of one KV head.
struct PlanTask {
  std::span<const attn::BlockView> views;
  std::span<const Placed> placed;  // one a view
  uint32_t position = 0;           // of the query
  uint32_t first_row = 0, first_head = 0;
  std::span<const SettledRun> settled = {};  // REQUIRES: the query sees all their rows
};

struct PlanInput {
  std::span<const CodecDesc> codecs;
  std::span<const PlanTask> tasks;
  attn::AttendParams params;
  uint32_t group = 1;
  uint32_t ctas = 2;  // of the device: at most as many are made, and 160, but for two, staged ones and one each for empty tasks
  bool tensor_cores = false;  // the device has what the fast paths need
  uint32_t settled_base = 0;
  Sharings* sharings = nullptr;             // or null: every plan is shared out anew
  std::span<const CodecDesc> readers = {};  // the same codecs with the reader's pointers; none: those above have them
};

struct Plan {
  std::vector<ViewDesc> views;  // that were not settled: the first of the reader's list
  std::vector<uint32_t> masks;
  std::vector<SegmentDesc> segments;
  std::vector<TaskDesc> tasks;
  std::vector<uint32_t> cta_begin;
  CtaFirsts firsts;  // of the fast thread blocks
  uint32_t partials = 0, general_ctas = 0, staged_ctas = 0;
  uint32_t first_staged = 0;  // segment of the first staged thread block: these have one each
  uint32_t chunk_rows = 64;   // that a warp of the general path takes at a time: 16, 32 or 64
  bool staged_last = false;   // Launch's
  bool only_beside = false;   // Launch's
  Path fast = Path::general;
  uint64_t bytes = 0;  // of keys and values that a launch reads
};

Plan make_plan(const PlanInput& input);

// What a launch has of its plan beside the lists: how many thread blocks of each kind, and in which order.
inline void take_blocks(const Plan& plan, Launch& launch) {
  launch.ctas = static_cast<uint32_t>(plan.cta_begin.size() - 1), launch.chunk_rows = plan.chunk_rows;
  launch.general_ctas = plan.general_ctas, launch.staged_ctas = plan.staged_ctas;
  launch.first_staged = plan.first_staged, launch.staged_last = plan.staged_last;
  launch.only_beside = plan.only_beside;
}

}  // namespace tierkv::cuda
