// prompt_plan.h — from views and many queries to rounds (prompt.h): which views go to scratch when, and equal pieces of work.
// Host code, no device needed.
//
// Rounds:  the KV heads of all sequences one after the other, as many as scratch holds; one that it does not hold alone is cut into
//          about equal parts. Views that no query of their sequence sees are left out.
// Frame:   of values and states, plain or Hadamard: whichever fewer rows have to be turned for; results, which are plain, count.
// Items:   of every round, each query tile against the run of key tiles from the first to the last that one of its queries sees.
//          Where these are too few for the device, or too uneven, runs are cut: as finely as shortens the round, and no finer.
// Errors:  none. Throws std::bad_alloc.
#pragma once

#include <span>
#include <vector>

#include "attn/attention.h"
#include "cuda/launch/prompt.h"
#include "cuda/plan/plan.h"

namespace tierkv::cuda {

// Views of one KV head, and where they are.
struct PromptHead {
  std::span<const attn::BlockView> views;
  std::span<const Placed> placed;
};

// Queries of one sequence.
struct PromptTask {
  std::span<const PromptHead> heads;
  std::span<const uint32_t> positions;  // one a query
  uint32_t work = 0;                    // index into `failed`
};

struct PromptPlanInput {
  std::span<const PromptTask> tasks;
  attn::AttendParams params;
  uint32_t group = 1;
  uint32_t multiprocessors = 1;
  std::span<const CodecDesc> codecs = {};  // with pointers of the host; none: nothing is known of any view
  uint32_t scratch_tiles = 2048;           // at least 3: a view of 256 rows that begins inside a tile
};

struct PromptRound {
  uint32_t first_view = 0, views = 0, tile_views = 0;  // PromptLaunch::tile_views
  uint32_t first_item = 0, items = 0;
  uint32_t first_key_tile = 0, key_tiles = 0;  // descriptors; items count from the first
};

struct PromptPlan {
  std::vector<PromptView> views;
  std::vector<uint32_t> positions, query_positions;
  std::vector<uint32_t> first_positions;  // of each task's queries in query_positions
  std::vector<KeyTileDesc> key_tiles;
  std::vector<QueryTileDesc> tiles;  // rows_of: the task
  std::vector<PromptItem> items;
  std::vector<uint32_t> slots;
  std::vector<PromptRound> rounds;
  uint32_t slot_count = 0;
  uint32_t most_key_tiles = 0;  // of a round
  bool value_frame = false;     // PromptLaunch::value_frame
};

// Whether whole blocks of a codec are unpacked a tile at a time, unless their values have to enter the Hadamard frame. Pointers are
// the host's.
bool unpacks_by_tile(const CodecDesc& codec);

PromptPlan make_prompt_plan(const PromptPlanInput& input);

}  // namespace tierkv::cuda
