#include "calibrations.h"

#include <algorithm>
#include <filesystem>
#include <span>

#include "common.h"
#include "gguf_file.h"
#include "terminal.h"
#include "tierkv/calibrate.h"

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

void self_calibrate(Engine& engine, const std::vector<int32_t>& prompt, const std::string& kv, bool quiet) {
  const llama::ModelShape& shape = engine.shape();
  if (find_calibration(engine.config(kv), shape)) return;
  if (prompt.size() < kSelfCalibrationTokens) {
    if (!quiet) {
      remark(format("--self-calibrate: the prompt has %zu tokens, and calibration needs %zu: the archive stays uncalibrated\n", prompt.size(),
                    kSelfCalibrationTokens));
    }
    return;
  }
  const std::string path = calibration_path(shape);
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  Progress progress("calibrating from the prompt", 1000, quiet);
  llama::CalibrateOptions options;
  options.tokens = std::min<uint64_t>(prompt.size(), 16384);
  options.threads = engine.threads();
  options.model_file = engine.path();
  options.text_name = "a prompt";
  options.progress = [&](const llama::CalibrateProgress& p) { progress.update(p.total != 0 ? 1000 * p.done / p.total : 0); };
  options.cancelled = [] { return interrupted(); };
  const auto report = llama::calibrate(shape, {prompt}, path, options);
  progress.finish();
  if (interrupted()) throw Interrupted();
  if (!report.ok()) {
    remark("--self-calibrate: " + report.status().message() + ": the archive stays uncalibrated\n");
  } else if (!quiet) {
    remark(dim(format("calibrated from %llu tokens of the prompt in %.0f s, kept as %s\n", static_cast<unsigned long long>(report->tokens),
                      report->seconds, path.c_str())));
  }
}

void remark_uncalibrated(Engine& engine, Session& session) {
  AdaptiveKVCache* cache = session.cache();
  if (!cache || cache->calibration()) return;
  const CacheConfig& config = cache->config();
  for (uint32_t l = 0; l < config.num_layers; ++l) {
    const std::string named = config.layer(l).archive_codec;
    if (cache->archive_codec(l).empty() || !(named.starts_with("auto") || named == "adaptive")) continue;
    remark(dim("no calibration of this model: the archive is " + cache->archive_codec(l) + "; `tierkv calibrate -m " + engine.path() +
               "` makes it smaller and better\n"));
    return;
  }
}

}  // namespace tierkv::cli
