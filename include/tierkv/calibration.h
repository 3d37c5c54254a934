// calibration.h — what was learned of one model's keys and values, for the codecs that need it (klt, kvquant, squat, the deep
// archive).
//
//   auto tables = tierkv::load_calibration("smollm2.tkc").value();
//   auto cache = tierkv::AdaptiveKVCache::create(config, tables).value();     // or config.calibration = "smollm2.tkc"
//
// `tierkv calibrate` makes such files; docs/use/calibration.md says how. A file is for one model: its shape and the fingerprint of
// its weights are in it, and blocks carry its id, so nothing is ever decoded with the wrong tables.
//
// Memory:   a calibration that was loaded keeps little: its tables stay in the file until a codec needs them, and the file must
//           stay as it is.
// Errors:   data_loss for bytes that are damaged, unsupported for a file of another version, not_found and io_error for the file
//           itself.
// Threads:  a calibration is immutable and may be shared by any number of caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tierkv/rope.h"
#include "tierkv/status.h"

namespace tierkv {

namespace calib {
class Calibration;
}
using CalibrationPtr = std::shared_ptr<const calib::Calibration>;

struct CalibrationInfo {
  std::string id;  // sixteen hexadecimal digits
  std::string model;
  uint64_t fingerprint = 0;  // of the model's weights
  uint32_t num_layers = 0;
  uint32_t num_heads = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t block = 0;               // tokens of the archive blocks it was made for
  std::string text;                 // what it was made from
  uint64_t tokens = 0;              // of that
  std::vector<std::string> codecs;  // what it has tables for
  std::vector<calib::Rope> ropes;   // of each layer, as it turns its keys
};

[[nodiscard]] Result<CalibrationPtr> load_calibration(const std::string& path);
// `name` is what messages call the bytes. `bytes_stay`: they outlive the calibration (they are part of the program, say), and
// tables are read from them when a codec needs some; otherwise all tables are kept in memory.
[[nodiscard]] Result<CalibrationPtr> parse_calibration(std::span<const std::byte> bytes, const std::string& name,
                                                       bool bytes_stay = false);
CalibrationInfo describe(const calib::Calibration& calibration);
// Refuses when `model` (its name, fingerprint, shape and ropes; a fingerprint of 0 and an empty list of ropes are not looked at) is
// not what the calibration was made for. RoPE fits when it turns the same pairs of channels by the same angles, to a part in ten
// thousand; the message names channels that turn differently.
[[nodiscard]] Status check_fit(const calib::Calibration& calibration, const CalibrationInfo& model);
// The same tables for the same model with its RoPE stretched: the same pairs of channels, other angles, one rope a layer. The copy
// is whole, keeps its tables in memory, and has an id of its own: blocks of one are never read with the other.
//
// Why that is right: a codec turns a key back by its position (or its block's) before it meets the tables, and forward again with
// the same angles, so what it decodes is right with any angles. What it costs: tables fit keys within a block of 128 positions,
// and those spread a little differently when they turn at another pace. Tables made with the model's own angles are better by
// some; docs/use/calibration.md has figures. invalid_argument: other pairs of channels, which are other keys.
[[nodiscard]] Result<CalibrationPtr> with_ropes(const CalibrationPtr& calibration, const std::vector<calib::Rope>& ropes);

}  // namespace tierkv
