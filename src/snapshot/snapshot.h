// snapshot.h — one sequence as bytes: the format's constants, what a reader makes of a file, and the two ways.
//
// docs/build/block_format.md is the specification. The reader works in two steps so that a bad file never touches a cache:
// read_header() and read_body() check everything and give spans into the file; build_sequence() then only copies.
//
// Memory:   what reading allocates is proportional to the bytes given, whatever their length fields claim.
// Threads:  pure functions, but for build_sequence(), which takes the arena's and the codec set's locks.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quant/codec_set.h"
#include "tierkv/config.h"
#include "tierkv/stats.h"
#include "tierkv/status.h"
#include "tiers/sequence.h"

namespace tierkv::snapshot {

using plan::LayerPlan;
using quant::CodecEntry;
using quant::CodecSet;
using store::BlockStore;
using tiers::BlockRef;
using tiers::HeadStream;
using tiers::kDeadPosition;
using tiers::LayerState;
using tiers::Sequence;
using tiers::StreamEnv;
using tiers::Tail;
using tiers::TailBuffer;

// Integers are written byte by byte, but codec bytes, 16-bit rows and statistics are stored as they lie in memory.
static_assert(std::endian::native == std::endian::little,
              "block bytes are little-endian: a big-endian host needs conversions in the codecs");

namespace format {

inline constexpr unsigned char kMagic[8] = {0x89, 'T', 'K', 'V', '\r', '\n', 0x1A, '\n'};
inline constexpr uint32_t kVersion = 3;        // the newest that this build knows: rows that are kept better, bare blocks
inline constexpr uint32_t kTablesVersion = 2;  // of files with calibrated codecs or a deep archive, and no such rows
inline constexpr uint32_t kPlainVersion = 1;   // of files with none of these
inline constexpr uint32_t kEndianTag = 0x01020304;

inline constexpr size_t kHeaderBytes = 64;
inline constexpr size_t kCodecBytes = 24;
inline constexpr size_t kLayerBytes = 24;
inline constexpr size_t kStreamBytes = 24;
inline constexpr size_t kBlockBytes = 32;
inline constexpr size_t kTrailerBytes = 8;  // XXH3-64 of everything before it

inline constexpr uint32_t kNoCodec = 0xFFFFFFFFu;  // a block's source: the hot tail itself
inline constexpr uint32_t kHasDeep = 1;
inline constexpr uint32_t kLayerRing = 1;
inline constexpr uint32_t kTailSparse = 1;
inline constexpr uint8_t kBlockSparse = 1;
inline constexpr uint8_t kBlockBare = 2;  // from version 3 on: without the statistics that other tokens of the file have

inline constexpr uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// A ring's spare capacity that a file may claim without bytes to show for it; the rest is written as zeros, so that the size of a
// file always implies what loading it allocates. What append() makes of a ring stays below this, unless most of its rows were
// truncated away.
inline constexpr uint64_t free_ring_capacity(uint32_t rows, uint32_t window) {
  return 2 * (static_cast<uint64_t>(rows) + window) + 16;
}

}  // namespace format

struct SnapshotHeader {
  uint32_t version = 0;
  uint32_t min_reader = 0;
  uint32_t header_bytes = 0;
  uint64_t file_bytes = 0;
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  bool hot_bf16 = false;
  uint32_t signal_mask = 0;  // bit set of 1 << policy::Signal
  uint32_t codecs = 0;
  bool deep = false;  // a deep archive follows the streams
  std::string model;
  uint64_t calibration = 0;  // from version 2 on: the id of the tables its codecs or its deep archive need; 0: none
};

struct SnapshotLayer {
  uint32_t length = 0;
  uint32_t unobserved = 0;
  uint32_t window_queries = 0;
  uint32_t window = 0;
  bool ring = false;
};

// Spans point into the file; positions and stats may be unaligned.
struct SnapshotBlock {
  Tier tier = Tier::warm;
  const CodecEntry* codec = nullptr;   // of Snapshot::codec_set
  const CodecEntry* source = nullptr;  // or null
  uint32_t first_position = 0;
  uint16_t rows = 0;
  uint16_t live = 0;
  uint64_t checksum = 0;
  std::span<const std::byte> positions, stats, keys, values;
};

struct SnapshotStream {
  size_t first_block = 0;  // in Snapshot::blocks
  uint32_t blocks = 0;
  uint32_t tail_rows = 0;
  uint32_t tail_first_position = 0;
  uint32_t ring_capacity = 0;
  std::span<const std::byte> positions, stats, keys, values;
};

struct Snapshot {
  SnapshotHeader header;
  std::vector<SnapshotLayer> layers;
  std::vector<SnapshotStream> streams;  // [layer][kv head]
  std::vector<SnapshotBlock> blocks;
  std::vector<const CodecEntry*> codecs;  // as listed; of the first head that used it where every head has its own
  std::unique_ptr<CodecSet> codec_set;
  std::span<const std::byte> deep;  // deep::encode()'s bytes, or empty
};

struct CodecUse {
  quant::CodecPair pair;
  uint32_t tokens = 0;  // of a block
};

// What a file says before its streams. The blocks of a calibrated codec are as long as its tables say: without them nobody can tell
// where one ends.
struct Outline {
  std::vector<SnapshotLayer> layers;
  std::vector<CodecUse> codecs;
  bool lacks_tables = false;  // read_body() would refuse the file: its codecs need another calibration
};

struct DeepPart;

struct SnapshotShape {
  uint32_t signal_mask = 0;
  bool hot_bf16 = false;
  std::string_view model;
};

// Which of a sequence's tokens a snapshot holds (run.h): the blocks from `first` to `end`, and with `rest` all that follows as
// well.
struct RunRange {
  uint32_t first = 0, end = 0;
  bool rest = false;
};

// REQUIRES: the sequence's lock is held. `plans` has one entry per layer. data_loss: a block in memory does not match its own
// checksum. `deep`: what is left out of the streams and put behind them, or null. `run`: which tokens; null: all.
[[nodiscard]] Result<std::vector<std::byte>> write_snapshot(const StreamEnv& env, const Sequence& sequence,
                                                            std::span<const LayerPlan> plans, const SnapshotShape& shape,
                                                            const DeepPart* deep = nullptr, const RunRange* run = nullptr);

// A file's size is all that bounds it.
inline constexpr uint64_t kMaxFileBytes = std::numeric_limits<int64_t>::max();
// The status with the file's name before its message.
Status in_file(const std::string& path, const Status& status);

// Magic, length, checksum and version, then the header's own fields.
[[nodiscard]] Result<SnapshotHeader> read_header(std::span<const std::byte> bytes);
// Everything after it. REQUIRES: read_header() accepted the same bytes, which outlive the result.
// `calibration`: the cache's, or null; a file that needs another is refused.
[[nodiscard]] Result<Snapshot> read_body(std::span<const std::byte> bytes, SnapshotHeader header,
                                         const CalibrationPtr& calibration);

// The part that needs no tables, with the same REQUIRES.
[[nodiscard]] Result<Outline> read_outline(std::span<const std::byte> bytes, const SnapshotHeader& header,
                                           const CalibrationPtr& calibration);

// Null when memory ran out. `codecs` is the cache's; signal_slot maps policy signals to env's slots, -1 where not kept.
[[nodiscard]] Result<std::shared_ptr<Sequence>> build_sequence(const StreamEnv& env, CodecSet& codecs, const int* signal_slot,
                                                               const Snapshot& snapshot);
// What build_sequence() takes from the arena, to the byte: with env's store at this moment, whose slabs may have room for headers;
// for an environment without a store, with each header by itself.
[[nodiscard]] uint64_t needed_bytes(const StreamEnv& env, const Snapshot& snapshot);

}  // namespace tierkv::snapshot
