// calibrations.cc — the calibration in the program.
#include "engine/calibrations.h"

#include "engine/error.h"

#ifdef TIERKV_SHIPPED_CALIBRATION
// The calibration of the default model, as `tierkv calibrate` wrote it (data/calibration/README.md).
asm(".pushsection .rodata\n"
    ".balign 64\n"
    "tierkv_shipped_calibration:\n"
    ".incbin \"" TIERKV_SHIPPED_CALIBRATION
    "\"\n"
    "tierkv_shipped_calibration_end:\n"
    ".byte 0\n"
    ".popsection\n");
extern "C" const std::byte tierkv_shipped_calibration[], tierkv_shipped_calibration_end[];
#endif

namespace tierkv::engine {

CalibrationPtr shipped_calibration([[maybe_unused]] const llama::ModelShape& shape) {
#ifdef TIERKV_SHIPPED_CALIBRATION
  static const CalibrationPtr calibration = take(parse_calibration({tierkv_shipped_calibration, tierkv_shipped_calibration_end},
                                                                   "the calibration that ships with tierkv", /*bytes_stay=*/true),
                                                 "");
  if (check_fit(*calibration, shape.identity()).ok()) return calibration;
#endif
  return nullptr;
}

}  // namespace tierkv::engine
