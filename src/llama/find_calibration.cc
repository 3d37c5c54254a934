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

Result<CalibrationPtr> find_calibration(const ModelShape& shape, const CacheConfig& config, std::string* note) try {
  if (!config.calibration_file().empty()) return load_calibration(config.calibration_file());
  std::error_code ignored;
  const std::string made = calibration_path(shape);
  if (config.calibrate == "off" || !std::filesystem::exists(made, ignored)) return CalibrationPtr();
  Result<CalibrationPtr> loaded = load_calibration(made);
  if (config.calibrate != "auto") return loaded;
  Status status = loaded.ok() ? check_fit(**loaded, shape.identity()) : loaded.status();
  if (status.ok() || status.code() == StatusCode::resource_exhausted) return loaded;
  if (note != nullptr) *note = "a calibration is not used: " + status.message();
  return CalibrationPtr();
}
TIERKV_NO_MEMORY("look for a calibration")

}  // namespace tierkv::llama
