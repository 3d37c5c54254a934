// prompt.h — what attention of many queries reads and writes beside block bytes: plain arrays that the host builds (prompt_plan.h)
// and a device or the scalar twin (prompt_twin_testing.h) works through.
//
// A round:    unpack some views of some KV heads, each once, into scratch; attend to them with every query that sees them. Rounds
//             follow one another in the same scratch, so that the past is never there as a whole.
// key tile:   128 rows of scratch, of one KV head: keys as halves in the plain frame, values as halves in the frame that the
//             launch says (value_frame), and a position each. Rows that are dead, or only fill a tile up, are zeros at
//             attn::kDeadPosition.
// query tile: up to 128 rows of queries of one KV head: tokens, and the query heads of a group within each.
// item:       one query tile against a run of key tiles, the work of one thread block. Its state (maximum, sum, weighted values)
//             goes to a slot, or is merged with what an earlier round left there.
// merge:      the slots of each query tile, and sink logits, to outputs in the plain frame.
#pragma once

#include <cstdint>

#include "cuda/launch/desc.h"
#include "cuda/launch/reading.h"

namespace tierkv::cuda {

inline constexpr uint32_t kKeyTile = 128, kQueryTile = 128;
inline constexpr uint32_t kUnpackRows = 16;  // views begin at multiples of so many rows of scratch
inline constexpr uint32_t kNoPositions = 0xFFFFFFFFu;
inline constexpr uint32_t kNowhere = 0xFFFFFFFFu;  // attn::kDeadPosition
inline constexpr uint32_t kMostWords = 8;          // with a bit for each channel

// Channels of a head in scratch: heads are padded with zeros.
TIERKV_BOTH uint32_t prompt_dim(uint32_t head_dim) { return head_dim <= 64 ? 64u : head_dim <= 128 ? 128u : 256u; }
// Bytes of one side of a key tile, and of both: keys first.
TIERKV_BOTH uint32_t key_tile_side(uint32_t dim) { return dim * kKeyTile * 2; }
TIERKV_BOTH uint32_t key_tile_bytes(uint32_t dim) { return 2 * key_tile_side(dim); }

// Where the half of a row and a channel lies in a side of a tile: as shared memory wants it, so that a tile is copied as it is.
// Both sides are runs of 128 bytes, whose eight parts of 16 bytes are exchanged (the 128-byte swizzle of tensor-core operands):
// keys  [64 channels][row]: 64 channels;  values [64 rows][channel]: 64 rows.
TIERKV_BOTH uint32_t key_at(uint32_t row, uint32_t channel) {
  return (channel / 64 * kKeyTile + row) * 128 + ((channel % 64 / 8) ^ (row % 8)) * 16 + channel % 8 * 2;
}
TIERKV_BOTH uint32_t value_at(uint32_t dim, uint32_t row, uint32_t channel) {
  return (row / 64 * dim + channel) * 128 + ((row % 64 / 8) ^ (channel % 8)) * 16 + row % 8 * 2;
}

struct PromptView {
  const uint8_t* keys = nullptr;
  const uint8_t* values = nullptr;
  uint32_t first_position = 0;        // of row 0
  uint32_t positions = kNoPositions;  // where those of all rows begin in PromptLaunch::positions; else they are consecutive
  uint32_t codec = 0;
  uint32_t to = 0;                // row of scratch
  uint16_t rows = 0, filled = 0;  // of the view, and with zeros behind it
  uint32_t work = 0;              // index into `failed`
};
static_assert(sizeof(PromptView) == 40);

// Live rows of a key tile lie at positions low..high; whole: there are no others.
struct KeyTileDesc {
  uint32_t low = 0xFFFFFFFFu, high = 0;
  uint32_t whole = 1;
};

// Queries and results of one sequence, in the reader's memory.
struct PromptRows {
  const void* queries = nullptr;  // element (token, query head, channel) at token·token_stride + head·head_stride + channel
  int64_t token_stride = 0, head_stride = 0;
  float* out = nullptr;  // [tokens][query heads][head_dim]
  float* lse = nullptr;  // [tokens][query heads], or null
  uint32_t type = 0;     // DType
  uint32_t query_heads = 0;
  uint32_t first_position = 0;  // of its queries, in PromptLaunch::query_positions
  uint32_t work = 0;            // index into `failed`
};

struct QueryTileDesc {
  uint32_t rows_of = 0;                // index into PromptLaunch::rows
  uint32_t first_head = 0;             // of the query heads of its KV head
  uint32_t first = 0, rows = 0;        // row r is head first_head + (first + r) % group of token (first + r) / group
  uint32_t low = 0, high = 0;          // positions of its queries
  uint32_t first_slot = 0, slots = 0;  // in PromptLaunch::slots
};

struct PromptItem {
  uint32_t tile = 0;
  uint32_t first_key = 0, keys = 0;  // tiles of scratch
  // Of the item's key tiles: `plain` in a row need no mask, and neither does the one before them. The first of them is an odd one,
  // and their number is even.
  uint32_t first_plain = 1, plain = 0;
  uint32_t slot = 0;
  uint32_t continues = 0;  // an earlier round left a state in the slot
};

struct PromptLaunch {
  const CodecDesc* codecs = nullptr;
  const PromptView* views = nullptr;       // of the round
  const uint32_t* positions = nullptr;     // of views that have a list
  const KeyTileDesc* key_tiles = nullptr;  // of the round
  const PromptItem* items = nullptr;       // of the round
  const QueryTileDesc* tiles = nullptr;
  const PromptRows* rows = nullptr;
  const uint32_t* query_positions = nullptr;
  const uint32_t* slots = nullptr;
  const float* sink_logits = nullptr;  // [query heads], or null

  uint8_t* scratch = nullptr;         // key tiles, aligned to 1,024 bytes
  uint32_t* key_positions = nullptr;  // one a row of scratch
  // States of slots: maximum of score·log2 e and sum of each row, and the weighted values, not divided.
  float* state_out = nullptr;  // [slots][kQueryTile][head_dim]
  float* state_top = nullptr;  // [slots][kQueryTile]
  float* state_sum = nullptr;
  uint32_t* failed = nullptr;  // [works]: set to 1 where rows or results leave the range of halves

  uint32_t head_dim = 0, group = 1;
  float scale = 1.0f, softcap = 0.0f;
  uint32_t causal = 1, window = 0;
  uint32_t value_frame = 0;         // 1: values of tiles and states are in the Hadamard frame
  uint32_t minus[kMostWords] = {};  // bit c % 32 of word c / 32: channel c's sign in the Hadamard frame
  // The first `tile_views` are whole blocks that are unpacked a tile at a time (prompt_unpack_tile.cuh).
  uint32_t view_count = 0, tile_views = 0, item_count = 0, tile_count = 0;
};

enum class PromptStep : uint8_t { unpack, attend, merge };

// Whether scores of a key tile have to be looked at one by one: not every query of the tile sees all of its rows.
TIERKV_BOTH bool needs_mask(bool causal, uint32_t window, const QueryTileDesc& tile, const KeyTileDesc& keys) {
  return !keys.whole || (causal && keys.high > tile.low) || (window != 0 && static_cast<uint64_t>(keys.low) + window <= tile.high);
}

TIERKV_BOTH uint32_t prompt_position(const PromptLaunch& launch, const PromptView& view, uint32_t row) {
  if (row >= view.rows) return kNowhere;
  return view.positions == kNoPositions ? view.first_position + row : launch.positions[view.positions + row];
}

}  // namespace tierkv::cuda
