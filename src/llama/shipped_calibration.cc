// shipped_calibration.cc — parses what the library carries, once.
#include "llama/shipped_calibration.h"

#include <mutex>

#include "base/status_macros.h"

namespace tierkv::llama {

Result<std::span<const CalibrationPtr>> shipped_calibrations() {
  static std::mutex mutex;
  static std::vector<CalibrationPtr> parsed;  // all of them or none
  const std::lock_guard lock(mutex);
  if (parsed.empty()) {
    std::vector<CalibrationPtr> made;
    for (const std::span<const std::byte> file : shipped_files()) {
      TIERKV_ASSIGN_OR_RETURN(made.emplace_back(),
                              parse_calibration(file, "a calibration that ships with tierkv", /*bytes_stay=*/true));
    }
    parsed.swap(made);
  }
  return std::span<const CalibrationPtr>(parsed);
}

}  // namespace tierkv::llama
