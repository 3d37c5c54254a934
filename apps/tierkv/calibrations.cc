#include "calibrations.h"

#include <filesystem>
#include <span>

#include "common.h"
#include "gguf_file.h"
#include "terminal.h"

#ifdef TIERKV_SHIPPED_CALIBRATION
// The calibration of the default model, as `tierkv calibrate` wrote it (data/calibration/README.md).
asm(".pushsection .rodata\n"
    ".balign 64\n"
    "tierkv_shipped_calibration:\n"
    ".incbin \"" TIERKV_SHIPPED_CALIBRATION "\"\n"
    "tierkv_shipped_calibration_end:\n"
    ".byte 0\n"
    ".popsection\n");
extern "C" const std::byte tierkv_shipped_calibration[], tierkv_shipped_calibration_end[];
#endif

namespace tierkv::cli {
namespace {

CalibrationInfo identity(const llama::ModelShape& shape) {
  CalibrationInfo id;
  id.model = shape.name;
  id.fingerprint = shape.fingerprint;
  id.num_layers = shape.layers;
  id.num_heads = shape.heads;
  id.num_kv_heads = shape.kv_heads;
  id.head_dim = shape.head_dim;
  return id;
}

CalibrationPtr shipped() {
#ifdef TIERKV_SHIPPED_CALIBRATION
  static const CalibrationPtr calibration =
      take(parse_calibration({tierkv_shipped_calibration, tierkv_shipped_calibration_end}, "the calibration that ships with tierkv"), "");
  return calibration;
#else
  return nullptr;
#endif
}

}  // namespace

std::string calibration_path(const llama::ModelShape& shape) {
  return (std::filesystem::path(cache_folder()) / "calibration" / format("%016llx.tkc", static_cast<unsigned long long>(shape.fingerprint))).string();
}

CalibrationPtr find_calibration(const CacheConfig& config, const llama::ModelShape& shape) {
  const CalibrationInfo id = identity(shape);
  if (!config.calibration.empty()) {
    CalibrationPtr named = take(load_calibration(config.calibration), "");
    check(check_fit(*named, id), config.calibration);
    return named;
  }
  const std::string made = calibration_path(shape);
  if (std::filesystem::exists(made)) {
    CalibrationPtr calibration = take(load_calibration(made), "");
    check(check_fit(*calibration, id), made);
    return calibration;
  }
  return shipped() && check_fit(*shipped(), id).ok() ? shipped() : nullptr;
}

}  // namespace tierkv::cli
