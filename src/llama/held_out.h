// held_out.h — what tables are worth on text that they were not made from.
#pragma once

#include <memory>
#include <vector>

#include "calib/calibration.h"
#include "llama/collect.h"

namespace tierkv::llama {

// A stretch of text that no window of calibration_windows() has: the longest there is, of at most 2,048 tokens. Empty: all of it
// was read, or what is left is too short to tell anything.
TokenList held_out_window(const std::vector<TokenList>& texts, const std::vector<TokenList>& windows,
                          const CalibrateOptions& options);

struct HeldOutErrors {
  uint64_t tokens = 0;        // 0: not checked
  double calibrated = 0.0;    // in the units of calib::KltHead::distortion, summed over heads
  double uncalibrated = 0.0;  // of an archive without tables
};
// What archives do to the statistics of a held-out text. REQUIRES: `calibration` is finished.
Result<HeldOutErrors> held_out_errors(const std::shared_ptr<const calib::Calibration>& calibration,
                                      const calib::Statistics& statistics);

}  // namespace tierkv::llama
