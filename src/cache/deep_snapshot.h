// deep_snapshot.h — the archived part of a sequence as a deep archive inside its snapshot: which tokens, out of their blocks, back into blocks.
//
// What is coded is a run of consecutive positions that lie in sealed blocks in every KV head of every layer the calibration codes, sinks and the
// recent window left out. Everything else stays in the snapshot as it is.
// Memory:   reading holds the run as 16-bit rows until the blocks are made.
// Threads:  as snapshot.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "cache/sequence.h"
#include "cache/snapshot.h"
#include "calib/calibration.h"
#include "tierkv/cache.h"
#include "tierkv/status.h"

namespace tierkv::cache {

struct DeepCalibration {
  CalibrationPtr calibration;
  std::shared_ptr<const calib::DeepTables> tables;
};

// What a snapshot leaves out of its streams because the deep archive has it.
struct DeepPart {
  uint32_t first = 0, end = 0;     // positions
  std::vector<bool> layers;        // which of the model's
  uint64_t calibration = 0;        // its id
  std::vector<std::byte> bytes;    // deep::encode()

  bool covers(uint32_t layer, const BlockRef& ref) const {
    return layers[layer] && ref.first_position >= first && ref.first_position < end;
  }
};

// The run that can be coded; empty (first == end) with the reason in `note` when there is none, and shorter with the reason when something is
// in the way. REQUIRES: the sequence's lock is held.
struct DeepRun {
  uint32_t first = 0, end = 0;
  std::string note;
};
DeepRun find_deep_run(const StreamEnv& env, const Sequence& sequence, std::span<const LayerPlan> plans, const calib::DeepTables& tables,
                      const DeepOptions& options);

// REQUIRES: the sequence's lock is held, first < end.
[[nodiscard]] Result<DeepPart> encode_deep(const StreamEnv& env, const Sequence& sequence, const DeepCalibration& calibration, const DeepRun& run,
                                           const DeepOptions& options, uint32_t threads, DeepReport* report);

// What the deep part of a file says of itself, checked against the file's streams: its tokens are in no stream already. REQUIRES: it has one.
[[nodiscard]] Status check_deep(const Snapshot& snapshot);
// What insert_deep() takes from the arena, if no codec refuses its rows.
[[nodiscard]] uint64_t deep_needed_bytes(const Snapshot& snapshot, std::span<const LayerPlan> plans, const calib::DeepTables& tables);
// Decodes the rows and seals them into blocks of the plans' own codecs. resource_exhausted: the arena has no room.
[[nodiscard]] Status insert_deep(const StreamEnv& env, const Snapshot& snapshot, std::span<const LayerPlan> plans, const DeepCalibration& calibration,
                                 ThreadPool& pool, Sequence& sequence);

}  // namespace tierkv::cache
