// find_calibration.cc — where a model's calibration lies when nobody says so.
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/guarded.h"
#include "base/status_macros.h"
#include "llama/shipped_calibration.h"
#include "tierkv/llama.h"

namespace tierkv::llama {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string calibration_folder() { return cache_folder() + "/calibration"; }

std::string id_text(uint64_t id) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(id));
  return text;
}

}  // namespace

std::string cache_folder() {
  if (const std::string own = variable("TIERKV_CACHE"); !own.empty()) return own;
  if (const std::string xdg = variable("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/tierkv";
  return variable("HOME") + "/.cache/tierkv";
}

std::string calibration_path(const ModelShape& shape) { return calibration_folder() + "/" + id_text(shape.fingerprint) + ".tkc"; }

Result<CalibrationPtr> shipped_calibration(const ModelShape& shape) try {
  TIERKV_ASSIGN_OR_RETURN(const std::span<const CalibrationPtr> shipped, shipped_calibrations());
  for (const CalibrationPtr& calibration : shipped) {
    if (check_fit(*calibration, shape.identity()).ok()) return calibration;
  }
  return CalibrationPtr();
}
TIERKV_NO_MEMORY("look for a calibration")

Result<CalibrationPtr> find_calibration(const ModelShape& shape, const CacheConfig& config, std::string* note) try {
  if (!config.calibration_file().empty()) return load_calibration(config.calibration_file());
  std::error_code ignored;
  const std::string made = calibration_path(shape);
  if (config.calibrate == "off") return CalibrationPtr();
  if (!std::filesystem::exists(made, ignored)) return shipped_calibration(shape);
  Result<CalibrationPtr> loaded = load_calibration(made);
  if (config.calibrate != "auto") return loaded;
  const Status status = loaded.ok() ? check_fit(**loaded, shape.identity()) : loaded.status();
  if (status.ok() || status.code() == StatusCode::resource_exhausted) return loaded;
  if (note != nullptr) *note = "a calibration is not used: " + status.message();
  return shipped_calibration(shape);
}
TIERKV_NO_MEMORY("look for a calibration")

Result<FoundCalibration> find_calibration(uint64_t id) try {
  const std::string wanted = id_text(id);
  TIERKV_ASSIGN_OR_RETURN(const std::span<const CalibrationPtr> shipped, shipped_calibrations());
  for (const CalibrationPtr& calibration : shipped) {
    if (describe(*calibration).id == wanted) return FoundCalibration{calibration, "it ships with tierkv"};
  }
  std::error_code problem;
  std::filesystem::directory_iterator at(calibration_folder(), problem);
  for (; !problem && at != std::filesystem::directory_iterator(); at.increment(problem)) {
    if (at->path().extension() != ".tkc") continue;
    Result<CalibrationPtr> file = load_calibration(at->path().string());
    if (file.ok() && describe(**file).id == wanted) return FoundCalibration{*file, at->path().string()};
  }
  return FoundCalibration{};
}
TIERKV_NO_MEMORY("look for a calibration")

}  // namespace tierkv::llama
