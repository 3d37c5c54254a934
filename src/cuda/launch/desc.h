// desc.h — what one launch reads beside block bytes and queries: plain arrays that the host builds (plan.h) and a device or the
// scalar twin (twin.h) works through.
//
// task:     one query of one KV head: `group` rows of queries, one softmax each.
// view:     a run of rows of one block, as far as the task's query sees them.
// segment:  views of one task that one thread block attends to in one way; its result is one partial state.
// cta:      the segments of one thread block, all of one path. All ctas of a path have about the same cost, whatever the lengths
//           of the sequences are.
#pragma once

#include <cstdint>

#include "quant/layout.h"

namespace tierkv::cuda {

inline constexpr uint32_t kMostGroup = 16;
inline constexpr uint32_t kNoMask = 0xFFFFFFFFu;
inline constexpr uint32_t kMaskWords = 8;   // of a view's 256 rows
inline constexpr uint32_t kTileRows = 128;  // rows of a block that the tensor-core paths take; a head has 64 or 128 channels there

// How a segment is attended to. Warm, plain and staged ones share a launch. One has at most one of the fast ones (plan.h),
// which follow staged.
enum class Path : uint8_t { general = 0, warm, plain, staged, packed22, packed44, packed42, klt, klt_better, whole22, klt_whole };
inline constexpr uint32_t kPathCount = 11;
inline const char* path_name(Path path) {
  constexpr const char* kNames[kPathCount] = {"general",  "warm", "plain",      "staged",  "packed22", "packed44",
                                              "packed42", "klt",  "klt_better", "whole22", "klt_whole"};
  return kNames[static_cast<uint32_t>(path)];
}
inline bool by_tiles(Path path) { return path == Path::plain || path == Path::staged; }  // of 16 rows, however many
inline constexpr bool is_klt(Path path) { return path == Path::klt || path == Path::klt_whole || path == Path::klt_better; }
inline bool beside_fast(Path path) { return path == Path::warm || by_tiles(path); }

// Blocks that a thread block has room for at a time on a packed path.
inline constexpr uint32_t packed_blocks(uint32_t key_bits, uint32_t value_bits, uint32_t head_dim) {
  return head_dim <= 64 || key_bits + value_bits <= 4 ? 16 : key_bits + value_bits >= 8 ? 8 : 12;
}

// What the fast path of klt has room for: words of a token, and steps of 16 components (fragments.h).
inline constexpr uint32_t kMostKltWords = 8, kMostKltSteps = 8;

// And better rows a block that its fast path takes (better.h).
inline constexpr uint32_t kMostFastBetter = 4;

// Thread blocks of the staged path that a multiprocessor has room for, and of heads over 128 channels; rows that one takes at a
// time.
inline constexpr uint32_t kStagedRoom = 4, kStagedWideRoom = 2, kStagedRows = 64;

// Tokens of a block that the warm path takes; tiles of 16 rows that the plain one takes at a time; thread blocks of theirs that a
// multiprocessor has room for, where none is staged.
inline constexpr uint32_t kWarmTokens = 64, kPlainTiles = 4, kBesideRoom = 6;
inline constexpr bool beside_takes(uint32_t head_dim) { return head_dim == 64 || head_dim == 128; }  // both of them

struct CodecDesc {
  quant::SideLayout key, value;               // pointers of the memory that the reader reads
  uint32_t key_better = 0, value_better = 0;  // rows of a block that are kept better; their bytes follow the side's (better.h)
  const void* key_fragments = nullptr;        // klt: its rows in the order of tensor-core operands (fragments.h)
};

struct ViewDesc {
  const uint8_t* keys = nullptr;
  const uint8_t* values = nullptr;
  uint32_t first_position = 0;  // of row 0
  uint16_t begin = 0, end = 0;  // rows that the query may see
  uint32_t mask = kNoMask;      // index into masks: kMaskWords words, bit r: row r is seen; kNoMask: all of begin..end-1
  uint32_t codec = 0;
};
static_assert(sizeof(ViewDesc) == 32);

struct SegmentDesc {
  uint32_t task = 0;
  uint32_t first_view = 0, views = 0;
  uint32_t partial = 0;    // where its state goes
  uint32_t first_row = 0;  // the task's
  uint32_t codec = 0;      // on a fast path, of all its views
  Path path = Path::general;
  uint8_t unused[3] = {};  // so that what is equal is equal bytes: a graph is told only what is new (cuda_graph.h)
  uint32_t first_partial = 0, partials = 0;  // the task's: whoever is last need not ask for them
};

// What a fast path has to know of a codec before it has read anything of it (fast_codec.h).
struct FastCodec {
  const void* fragments = nullptr;  // klt: CodecDesc's, and its turns
  const float* turns = nullptr;
  float key_zero = 0.0f, value_zero = 0.0f;
  uint16_t key_bytes = 0, value_bytes = 0;  // of a block that are copied: better rows of keys are read where they are
  uint16_t mean_at = 0;                     // of keys; 0: none
  uint8_t steps = 0, grouped = 0;           // klt
  uint8_t by_channel = 0, key_hadamard = 0, value_hadamard = 0, value_bits = 0;
  quant::MetaKind value_meta = quant::MetaKind::f16_pair;
  uint8_t unused[1] = {};
  uint16_t index = 0;  // of the launch's codecs, in a launch's parameters
};
static_assert(sizeof(SegmentDesc) == 36 && sizeof(FastCodec) == 40);

// Where a fast thread block begins, in the launch's own parameters, so that it need not ask far memory for anything before its
// first copies are under way. Few bytes: a launch takes the longer the more parameters it has.
struct CtaFirst {
  uint32_t first_view = 0, views = 0, task = 0, first_row = 0, first_partial = 0;  // of its first segment
  uint32_t at = 0;                                                                 // and its index
  uint16_t own_partial = 0, partials = 0;  // of the segment: its partial behind the task's first, and the task's
  uint16_t codec = 0, segments = 0;        // its codec among those below, or kNoFirstCodec; how many segments there are
};
static_assert(sizeof(CtaFirst) == 32);
inline constexpr uint32_t kMostFirsts = 160, kMostFirstCodecs = 32;  // thread blocks; codecs of theirs
inline constexpr uint16_t kNoFirstCodec = 0xFFFF;                    // look into the launch's lists instead
struct CtaFirsts {
  CtaFirst of[kMostFirsts];
  FastCodec codecs[kMostFirstCodecs];
};
static_assert(sizeof(CtaFirsts) < 16384);  // a kernel may have 32,764 bytes of parameters

struct TaskDesc {
  uint32_t first_row = 0;   // of queries, out and lse: `group` rows
  uint32_t first_head = 0;  // of the sink logits
  uint32_t first_partial = 0, partials = 0;
};

// Everything of one launch, as pointers of the reader's memory.
struct Launch {
  const CodecDesc* codecs = nullptr;
  const ViewDesc* views = nullptr;
  const uint32_t* masks = nullptr;
  const SegmentDesc* segments = nullptr;
  const TaskDesc* tasks = nullptr;
  const uint32_t* cta_begin = nullptr;  // [ctas + 1]: segments of each

  const float* queries = nullptr;      // [rows][head_dim]
  const float* sink_logits = nullptr;  // [query heads], or null
  float* out = nullptr;                // [rows][head_dim] of out_type
  float* lse = nullptr;                // [rows], or null
  uint32_t* failed = nullptr;          // [tasks]: set to 1 where a row is not finite; the row is zeros then

  // Partial states: maximum (of score·log2 e) and sum of each row, and the weighted values, not divided, in the plain frame.
  float* partial_out = nullptr;  // [partials][group][head_dim]
  float* partial_top = nullptr;  // [partials][group]
  float* partial_sum = nullptr;  // [partials][group]
  uint32_t* arrived = nullptr;   // [tasks]: 0 before and after a launch
  uint32_t* given = nullptr;     // [2]: staged segments given out, and thread blocks that were done with it; 0 before and after

  uint32_t head_dim = 0, group = 0;
  float scale = 1.0f, softcap = 0.0f;
  uint32_t chunk_rows = 64;  // that a warp of the general path takes at a time: 16, 32 or 64
  uint32_t ctas = 0;
  uint32_t first_staged = 0;  // the first staged or warm segment
  // Of the thread blocks: the first so many have general segments, the next so many a staged or warm one each, the others fast
  // ones. Staged ones are launched before the fast ones, or behind them: then those that have room beside them take one segment
  // after the other, and the rest begins when fast ones end.
  uint32_t general_ctas = 0, staged_ctas = 0;
  bool staged_last = false;
  bool only_beside = false;  // staged ones are all warm or plain: a kernel that has more room takes them
  uint8_t out_type = 0;      // a DType
};
static_assert(sizeof(Launch) == 168);

inline constexpr uint32_t kMostStaged = 512;  // thread blocks of the staged kernel

}  // namespace tierkv::cuda
