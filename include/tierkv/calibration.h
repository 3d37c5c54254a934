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
};

[[nodiscard]] Result<CalibrationPtr> load_calibration(const std::string& path);
// `name` is what messages call the bytes. `bytes_stay`: they outlive the calibration (they are part of the program, say), and
// tables are read from them when a codec needs some; otherwise all tables are kept in memory.
[[nodiscard]] Result<CalibrationPtr> parse_calibration(std::span<const std::byte> bytes, const std::string& name,
                                                       bool bytes_stay = false);
CalibrationInfo describe(const calib::Calibration& calibration);
// Refuses when `model` (its name, fingerprint and shape; a fingerprint of 0 is not looked at) is not what the calibration was made
// for.
[[nodiscard]] Status check_fit(const calib::Calibration& calibration, const CalibrationInfo& model);

}  // namespace tierkv
