// deep_part.h — the archived part of a sequence as a deep archive: which tokens, and out of their blocks into bytes. The way back
// is deep_blocks.h.
//
// What is coded is a run of consecutive positions that lie in sealed blocks in every KV head of every layer the calibration codes,
// sinks and the recent window left out. Everything else stays in the snapshot as it is.
// Threads:  as snapshot.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "calib/calibration.h"
#include "deep/archive.h"
#include "snapshot/snapshot.h"
#include "tierkv/cache.h"
#include "tierkv/status.h"
#include "tiers/sequence.h"

namespace tierkv::snapshot {

struct DeepCalibration {
  CalibrationPtr calibration;
  std::shared_ptr<const calib::DeepTables> tables;

  deep::ModelTables model_tables() const;
};
// Deep archives are read and written with the tables of one calibration. failed_precondition: it is null, or has none.
[[nodiscard]] Result<DeepCalibration> deep_calibration(CalibrationPtr calibration);

// What a snapshot leaves out of its streams because the deep archive has it: blocks that are packed already, and those covered
// here.
struct DeepPart {
  uint32_t first = 0, end = 0;   // positions; first == end: none beside the packed ones
  std::vector<bool> layers;      // which of the model's
  uint64_t calibration = 0;      // its id
  std::vector<std::byte> bytes;  // deep::encode()

  bool empty() const { return first == end; }
  bool covers(uint32_t layer, const BlockRef& ref) const {
    return ref.first_position >= first && ref.first_position < end && layers[layer];
  }
};

// The run that can be coded; empty (first == end) with the reason in `note` when there is none, and shorter with the reason when
// something is in the way. Where parts are packed already it is the first run before, between or behind them that is long enough.
// REQUIRES: the sequence's lock is held.
struct DeepRun {
  uint32_t first = 0, end = 0;
  std::string note;
};
DeepRun find_deep_run(const StreamEnv& env, const Sequence& sequence, std::span<const LayerPlan> plans,
                      const calib::DeepTables& tables, const DeepOptions& options);

// REQUIRES: the sequence's lock is held, first < end.
[[nodiscard]] Result<DeepPart> encode_deep(const StreamEnv& env, const Sequence& sequence, const DeepCalibration& calibration,
                                           const DeepRun& run, const DeepOptions& options, uint32_t threads, DeepReport* report);

// Both: an empty part, with the reason in report.note, when nothing can be coded. REQUIRES: the sequence's lock is held.
[[nodiscard]] Result<DeepPart> encode_deep(const StreamEnv& env, const Sequence& sequence, std::span<const LayerPlan> plans,
                                           const DeepCalibration& calibration, const DeepOptions& options, uint32_t threads,
                                           DeepReport& report);

// What the deep part of a file says of itself, checked against the file's streams: its tokens are in no stream already. REQUIRES:
// it has one.
[[nodiscard]] Status check_deep(const Snapshot& snapshot);

}  // namespace tierkv::snapshot
