// snapshot.h — looks into a snapshot without a cache: what model and shape it is of, how long, what its tiers hold.
//
// The bytes are those of AdaptiveKVCache::freeze() or of a file save() wrote; docs/build/block_format.md describes them. Everything
// load() checks is checked here too, but for what depends on the cache: whatever passes is whole and loads into a cache of the same
// shape. Without the calibration that its codecs need the checksum of the whole, the header, the codecs and the lengths are
// checked, and nobody can look further: SnapshotInfo::lacks_tables says so.
//
// Errors:   data_loss for bytes that are truncated, damaged or contradict themselves; unsupported for a file that needs a newer
//           reader or a codec this build does not have; not_found and io_error for the file itself.
// Threads:  pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tierkv/calibration.h"
#include "tierkv/stats.h"
#include "tierkv/status.h"

namespace tierkv {

struct SnapshotTier {
  uint64_t tokens = 0;  // live rows, summed over layers and KV heads
  uint64_t bytes = 0;   // of their keys and values in the file
};

struct SnapshotInfo {
  uint32_t version = 0;       // of the writer's format
  uint32_t min_reader = 0;    // the oldest reader that understands it
  std::string model;          // as configured when it was saved; may be empty
  uint64_t calibration = 0;   // id of the calibration its codecs need; 0: none
  bool lacks_tables = false;  // its codecs need that calibration, and it was not given: blocks, tiers and deep_* are not known
  uint32_t num_layers = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;
  std::string hot_type;           // fp16 or bf16
  uint32_t length = 0;            // positions, the smallest over layers
  uint32_t eviction_signals = 0;  // bit set: which eviction statistics it carries
  uint64_t file_bytes = 0;
  uint64_t blocks = 0;  // sealed blocks in all streams
  SnapshotTier tier[kNumTiers];
  uint32_t deep_tokens = 0;  // in the deep archive, which is in no tier; 0: it has none
  uint32_t deep_first_position = 0;
  uint32_t deep_layers = 0;
  uint64_t deep_bytes = 0;
  std::vector<std::string> codecs;  // "rot2 x128": codec and tokens of a block, in order of first use

  const SnapshotTier& operator[](Tier t) const { return tier[static_cast<int>(t)]; }
};

[[nodiscard]] Result<SnapshotInfo> inspect_snapshot(std::span<const std::byte> bytes, const CalibrationPtr& calibration = nullptr);
[[nodiscard]] Result<SnapshotInfo> inspect_snapshot(const std::string& path, const CalibrationPtr& calibration = nullptr);

}  // namespace tierkv
