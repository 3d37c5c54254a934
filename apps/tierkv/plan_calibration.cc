#include "plan_calibration.h"

#include <filesystem>

#include "engine/engine.h"
#include "interrupt.h"

namespace tierkv::cli {
namespace {

// Damaged files are for a run to complain about.
bool some_has_this_shape(const GgufFile& file) {
  namespace fs = std::filesystem;
  llama::ModelShape shape;  // without a fingerprint, which is then not looked at
  shape.layers = file.layers, shape.heads = file.heads, shape.kv_heads = file.kv_heads, shape.head_dim = file.head_dim;
  const auto shipped = llama::shipped_calibration(shape);
  if (shipped.ok() && *shipped) return true;
  std::error_code problem;
  for (const auto& entry : fs::directory_iterator(cache_folder() + "/calibration", problem)) {
    if (entry.path().extension() != ".tkc") continue;
    const auto loaded = load_calibration(entry.path().string());
    if (loaded.ok() && check_fit(**loaded, shape.identity()).ok()) return true;
  }
  return false;
}

}  // namespace

CalibrationPtr plan_calibration(const GgufFile& file, const std::string& kv, const llama::RopeSettings& rope) {
  CacheConfig wanted;
  check(apply_spec(kv, wanted), "--kv " + kv);
  wanted.num_layers = file.layers;
  if (!wants_calibration(wanted) || wanted.calibrate == "off") return nullptr;
  if (wanted.calibration_file().empty() && !some_has_this_shape(file)) return nullptr;
  EngineOptions options;
  options.model = file.path;
  options.rope = rope;
  options.cancel = cancellation();
  Engine engine(options);
  return engine.calibration(engine.config(kv));
}

}  // namespace tierkv::cli
