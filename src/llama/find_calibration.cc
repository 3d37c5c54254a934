// find_calibration.cc — where a model's calibration lies when nobody says so.
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/checksum.h"
#include "base/guarded.h"
#include "base/status_macros.h"
#include "calib/calibration.h"
#include "calib/rope_fit.h"
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

// Of the model with its own RoPE.
std::string own_path(const ModelShape& shape) { return calibration_folder() + "/" + id_text(shape.fingerprint) + ".tkc"; }

}  // namespace

std::string cache_folder() {
  if (const std::string own = variable("TIERKV_CACHE"); !own.empty()) return own;
  if (const std::string xdg = variable("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/tierkv";
  return variable("HOME") + "/.cache/tierkv";
}

std::string calibration_path(const ModelShape& shape) {
  const std::string plain = own_path(shape);
  if (shape.own_ropes) return plain;
  const std::string settings = shape.rope.text();
  const uint64_t number = checksum(std::as_bytes(std::span(settings)));
  return plain.substr(0, plain.size() - 4) + "-" + id_text(number).substr(0, 8) + ".tkc";
}

Result<CalibrationPtr> shipped_calibration(const ModelShape& shape) try {
  TIERKV_ASSIGN_OR_RETURN(const std::span<const CalibrationPtr> shipped, shipped_calibrations());
  CalibrationInfo model = shape.identity();
  model.ropes.clear();  // with others than the model's own, see find_calibration()
  for (const CalibrationPtr& calibration : shipped) {
    if (check_fit(*calibration, model).ok()) return calibration;
  }
  return CalibrationPtr();
}
TIERKV_NO_MEMORY("look for a calibration")

namespace {

// Any, as the model is: the shipped one too.
Result<CalibrationPtr> find_any(const ModelShape& shape, const CacheConfig& config, std::string* note) {
  if (!config.calibration_file().empty()) return load_calibration(config.calibration_file());
  if (config.calibrate == "off") return CalibrationPtr();
  std::error_code ignored;
  std::string made = calibration_path(shape);
  if (!std::filesystem::exists(made, ignored)) made = own_path(shape);
  if (!std::filesystem::exists(made, ignored)) return shipped_calibration(shape);
  Result<CalibrationPtr> loaded = load_calibration(made);
  if (config.calibrate != "auto") return loaded;
  CalibrationInfo model = shape.identity();
  if (loaded.ok() && calib::compare((*loaded)->ropes, shape.ropes) == calib::RopeFit::angles) model.ropes.clear();
  const Status status = loaded.ok() ? check_fit(**loaded, model) : loaded.status();
  if (status.ok() || status.code() == StatusCode::resource_exhausted) return loaded;
  if (note != nullptr) *note = "a calibration is not used: " + status.message();
  return shipped_calibration(shape);
}

}  // namespace

Result<CalibrationPtr> find_calibration(const ModelShape& shape, const CacheConfig& config, std::string* note) try {
  TIERKV_ASSIGN_OR_RETURN(CalibrationPtr found, find_any(shape, config, note));
  if (!found || shape.ropes.empty() || calib::compare(found->ropes, shape.ropes) != calib::RopeFit::angles) return found;
  CalibrationInfo model = shape.identity();
  model.ropes.clear();
  if (!check_fit(*found, model).ok()) return found;  // another model's: Host::attach() says so
  if (note != nullptr && note->empty()) {
    *note = "the calibration was made with another RoPE, and its tables are used with this one; `tierkv calibrate" +
            (shape.own_ropes ? "" : " " + shape.rope.text()) + "` makes better ones";
  }
  return with_ropes(found, shape.ropes);
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
