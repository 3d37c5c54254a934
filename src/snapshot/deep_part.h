// deep_snapshot.h — the archived part of a sequence as a deep archive inside its snapshot: which tokens, out of their blocks, back
// into blocks.
//
// What is coded is a run of consecutive positions that lie in sealed blocks in every KV head of every layer the calibration codes,
// sinks and the recent window left out. Everything else stays in the snapshot as it is.
// Memory:   reading holds the run as 16-bit rows until the blocks are made.
// Threads:  as snapshot.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "calib/calibration.h"
#include "deep/archive.h"
#include "snapshot/snapshot.h"
#include "tierkv/cache.h"
#include "tierkv/status.h"
#include "tiers/parked.h"
#include "tiers/row_batch.h"
#include "tiers/sequence.h"

namespace tierkv::snapshot {

using tiers::PackedBytes;
using tiers::RowBatch;
using tiers::scratch_batch;

struct DeepCalibration {
  CalibrationPtr calibration;
  std::shared_ptr<const calib::DeepTables> tables;
};

// What a snapshot leaves out of its streams because the deep archive has it.
struct DeepPart {
  uint32_t first = 0, end = 0;   // positions
  std::vector<bool> layers;      // which of the model's
  uint64_t calibration = 0;      // its id
  std::vector<std::byte> bytes;  // deep::encode()

  bool empty() const { return first == end; }
  bool covers(uint32_t layer, const BlockRef& ref) const {
    return layers[layer] && ref.first_position >= first && ref.first_position < end;
  }
};

// The run that can be coded; empty (first == end) with the reason in `note` when there is none, and shorter with the reason when
// something is in the way. REQUIRES: the sequence's lock is held.
struct DeepRun {
  uint32_t first = 0, end = 0;
  std::string note;
};
DeepRun find_deep_run(const StreamEnv& env, const Sequence& sequence, std::span<const LayerPlan> plans,
                      const calib::DeepTables& tables, const DeepOptions& options);

// REQUIRES: the sequence's lock is held, first < end.
[[nodiscard]] Result<DeepPart> encode_deep(const StreamEnv& env, const Sequence& sequence, const DeepCalibration& calibration,
                                           const DeepRun& run, const DeepOptions& options, uint32_t threads, DeepReport* report);

// What the deep part of a file says of itself, checked against the file's streams: its tokens are in no stream already. REQUIRES:
// it has one.
[[nodiscard]] Status check_deep(const Snapshot& snapshot);

// Where the rows of a deep archive go: into the coldest tier that a layer has, but for the positions from warm_from[layer * kv
// heads + head] on, which go into warm blocks. No warm_from: all into the coldest.
struct DeepTarget {
  std::span<const LayerPlan> plans;
  std::span<const uint32_t> warm_from;
};
// What the blocks take from the arena, if no codec refuses its rows.
[[nodiscard]] uint64_t deep_block_bytes(const deep::ArchiveInfo& info, const calib::DeepTables& tables, const DeepTarget& target);

// A deep archive on its way back into blocks: decode() once, then seal(), which another call continues when memory ran out, then
// commit(). Until then the sequence is as it was; blocks that were not committed go with the object. Everything given outlives it.
class DeepReturn {
 public:
  DeepReturn(const StreamEnv& env, const DeepTarget& target, const DeepCalibration& calibration);
  ~DeepReturn();
  DeepReturn(const DeepReturn&) = delete;
  DeepReturn& operator=(const DeepReturn&) = delete;

  [[nodiscard]] Status decode(std::span<const std::byte> bytes, uint32_t threads);
  // False: the arena has no room for the next block.
  [[nodiscard]] bool seal(ThreadPool& pool);
  // Puts the blocks into the streams, all or none. data_loss: a stream has rows there already. resource_exhausted: no room for its
  // list.
  [[nodiscard]] Status commit(Sequence& sequence);

  uint64_t sealed_bytes() const;
  // Their memory for `bytes`; the return is over then. False: sealed_bytes() are too few.
  [[nodiscard]] bool hand_over(std::span<const std::byte> bytes, PackedBytes& to);

 private:
  class Rows;
  struct Stream {
    uint32_t layer = 0, head = 0, done = 0;  // tokens in blocks
    std::vector<BlockRef> blocks;
  };
  bool seal_stream(Stream& s);

  const StreamEnv& env_;
  const DeepTarget target_;
  const DeepCalibration& calibration_;
  deep::ArchiveInfo info_;
  std::unique_ptr<Rows> rows_;
  std::vector<Stream> streams_;
};

// What a snapshot's deep part takes from the arena.
[[nodiscard]] uint64_t deep_needed_bytes(const Snapshot& snapshot, std::span<const LayerPlan> plans,
                                         const calib::DeepTables& tables);
// All of it at once, into a sequence that was made for it. resource_exhausted: the arena has no room.
[[nodiscard]] Status insert_deep(const StreamEnv& env, const Snapshot& snapshot, std::span<const LayerPlan> plans,
                                 const DeepCalibration& calibration, ThreadPool& pool, Sequence& sequence);

}  // namespace tierkv::snapshot
