// find_calibration.cc — where a model's calibration lies when nobody says so.
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/guarded.h"
#include "tierkv/llama.h"

namespace tierkv::llama {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

std::string cache_folder() {
  if (const std::string own = variable("TIERKV_CACHE"); !own.empty()) return own;
  if (const std::string xdg = variable("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/tierkv";
  return variable("HOME") + "/.cache/tierkv";
}

std::string calibration_path(const ModelShape& shape) {
  char file[32];
  std::snprintf(file, sizeof file, "%016llx.tkc", static_cast<unsigned long long>(shape.fingerprint));
  return cache_folder() + "/calibration/" + file;
}

Result<CalibrationPtr> find_calibration(const ModelShape& shape, const CacheConfig& config) try {
  if (!config.calibration.empty()) return load_calibration(config.calibration);
  std::error_code ignored;
  const std::string made = calibration_path(shape);
  if (!std::filesystem::exists(made, ignored)) return CalibrationPtr();
  return load_calibration(made);
}
TIERKV_NO_MEMORY("look for a calibration")

}  // namespace tierkv::llama
