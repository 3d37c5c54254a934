// check.h — whether tables are worth having: rows they were not made of, through the archive with them and without.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "calib/calibration.h"
#include "tierkv/status.h"

namespace tierkv::learn {

// Tables are refused where they leave more than this much of the error that an archive without them makes, which spends a bit and
// more beyond theirs. Good ones leave 0.5 (Gemma-3-270M) and 0.7 (SmolLM2), those of 2,048 tokens of one text 2.0 (Gemma).
inline constexpr double kMostOfUncalibrated = 1.0;

// What the archive does to one head's held-out rows, weighed by its held-out queries.
struct HeadErrors {
  double calibrated = 0.0, uncalibrated = 0.0;
};

struct HeldOutHead {
  std::vector<float> keys, values;  // [n][dim], keys in the frame of their blocks
  std::vector<double> metric;       // [dim][dim], of keys
  double value_metric = 0.0;        // of each channel of values
};

// The codecs are klt1.875 and what an archive is without tables, on blocks of the calibration's length. REQUIRES: a row at least;
// `calibration` is finished.
Result<HeadErrors> held_out_errors(const std::shared_ptr<const calib::Calibration>& calibration, uint32_t layer, uint32_t head,
                                   const HeldOutHead& rows);

}  // namespace tierkv::learn
