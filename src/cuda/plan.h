// plan.h — from views and queries to what a launch reads (desc.h): which rows a query sees, which way each view is read, and equal
// pieces of work. Host code, no device needed.
//
// Split:    each task's views are cut into pieces of equal cost (bytes, and a fixed part each), and the pieces shared out among
//           `ctas` thread blocks, so that a ragged batch keeps every multiprocessor of a device about as busy as an even one. The
//           first `general_ctas` have pieces of the general path, `staged_ctas` more a small piece each of the staged one, the
//           others pieces of the fast one: kernels side by side.
// Path:     of the fast paths that a launch's views could take, the one that covers most bytes is the launch's. Other views are
//           staged where they can be, and read in the general way where not: klt's blocks with dead rows, better rows, several
//           scales a row.
// Settled:  views that lie in the reader's list already, from an earlier call (standing.h), are planned run by run, however many
//           they are; few of them that have no fast path are listed again, beside the others of their task.
// Errors:   none: what a device cannot read is refused before (readable()). Throws std::bad_alloc.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "attn/attention.h"
#include "cuda/desc.h"

namespace tierkv::cuda {

// Where the bytes of one view are for the reader.
struct Placed {
  const uint8_t* keys = nullptr;
  const uint8_t* values = nullptr;
  uint32_t codec = 0;  // index into PlanInput::codecs
};

// Of values, as the staged path has them: all views of a segment in one.
enum class Frame : uint8_t { plain = 0, hadamard = 1 };

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

// How runs of views were shared out among thread blocks. It depends on the runs alone, and those of all layers of a model, and of
// many steps in a row, are alike: the last few are remembered, and compared in full before they are used.
struct WorkRun {
  uint32_t task = 0;
  Path path = Path::general;
  uint32_t codec = 0, first = 0, views = 0;
  uint64_t warps = 0;               // that its views keep busy once: one a view of a fast path, one a piece of the general one
  uint64_t cost = 0;                // of a staged run: tiles of 16 rows
  const ViewDesc* descs = nullptr;  // of a settled run, for the host; null: they are in the plan's own list
  // Staged and warm runs are not shared out.
  bool costs_as(const WorkRun& o) const {
    return path == o.path && (beside_fast(path) || (views == o.views && warps == o.warps && cost == o.cost));
  }
};
struct WorkPiece {
  uint32_t run, first, views;  // `first` of the run's
  uint64_t cost;
  bool operator==(const WorkPiece&) const = default;
};
struct Sharing {
  std::vector<WorkRun> runs;
  uint32_t ctas = 0, chunk_rows = 0;
  uint32_t general = 0;  // thread blocks that are general
  std::vector<WorkPiece> pieces;
  std::vector<std::vector<uint32_t>> bins;  // of a cta: indices of pieces
};
struct Sharings {
  static constexpr size_t kMost = 8;
  std::vector<Sharing> kept;
  size_t next = 0;  // to be replaced
};

struct PlanInput {
  std::span<const CodecDesc> codecs;
  std::span<const PlanTask> tasks;
  attn::AttendParams params;
  uint32_t group = 1;
  uint32_t ctas = 2;  // of the device: at most as many are made, and 160, but for two, staged ones and one each for empty tasks
  bool tensor_cores = false;  // the device has what the fast paths need
  uint32_t settled_base = 0;
  Sharings* sharings = nullptr;  // or null: every plan is shared out anew
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
  Path fast = Path::general;
  uint64_t bytes = 0;  // of keys and values that a launch reads
};

// Whether blocks of these codecs can be read at all: fills both sides. Pointers are the codecs' own.
bool readable(const quant::Codec& key, const quant::Codec& value, CodecDesc& out);

// The fast path that whole blocks of a codec could take; general where there is none.
Path fast_path(const CodecDesc& codec, uint32_t group);
// The same where the codec's tables are on the device already; general where not.
Path ready_path(const CodecDesc& codec, uint32_t group);

// Whether whole blocks of a codec can take the warm path.
bool takes_warm(const CodecDesc& codec, uint32_t group);

// Whether views of a codec can be staged, and the frame of their values.
std::optional<Frame> staged_frame(const CodecDesc& codec);

// Bytes of both sides of a whole block on a device.
uint64_t block_bytes(const CodecDesc& codec);

// Pieces of a view that warps of the general path take.
inline uint64_t chunks_of(const ViewDesc& view, uint32_t chunk_rows) {
  return (view.end + chunk_rows - 1) / chunk_rows - view.begin / chunk_rows;
}

Plan make_plan(const PlanInput& input);

}  // namespace tierkv::cuda
