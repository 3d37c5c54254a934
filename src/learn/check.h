// check.h — whether tables are worth having: rows they were not made of, through the archive with them and without.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "calib/calibration.h"
#include "tierkv/status.h"

namespace tierkv::learn {

// What the archive does to one head's held-out rows, weighed by its held-out queries.
struct HeadErrors {
  double calibrated = 0.0, uncalibrated = 0.0;
};

struct HeldOutHead {
  std::vector<float> keys, values;  // [n][dim], keys in the frame of their blocks
  std::vector<double> metric;       // [dim][dim], of keys
  double value_metric = 0.0;        // of each channel of values
};

// The codecs are klt1.875 and rot2/mid2, on blocks of the calibration's length. REQUIRES: a row at least; `calibration` is
// finished.
Result<HeadErrors> held_out_errors(const std::shared_ptr<const calib::Calibration>& calibration, uint32_t layer, uint32_t head,
                                   const HeldOutHead& rows);

}  // namespace tierkv::learn
