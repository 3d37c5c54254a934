#include "self_calibrate.h"

#include "engine/calibrations.h"
#include "terminal.h"

namespace tierkv::cli {

void self_calibrate(Engine& engine, std::span<const llama_token> prompt, const std::vector<std::string>& kv, bool quiet) {
  if (!lacks_calibration(engine, kv)) return;
  if (prompt.size() < kSelfCalibrationTokens) {
    if (!quiet) {
      remark(format("--self-calibrate: the prompt has %zu tokens, and calibration needs %zu: the archive stays uncalibrated\n",
                    prompt.size(), kSelfCalibrationTokens));
    }
    return;
  }
  const std::string path = llama::calibration_path(engine.shape());
  Progress progress("calibrating from the prompt", 1000, quiet);
  const auto report =
      calibrate_from_prompt(engine, prompt, path, [&](double share) { progress.update(static_cast<uint64_t>(1000.0 * share)); });
  progress.finish();
  if (!report.ok()) {
    remark("--self-calibrate: " + report.status().message() + ": the archive stays uncalibrated\n");
  } else if (!quiet) {
    remark(dim("calibrated from " + human_count(report->tokens) + " tokens of the prompt in " + human_seconds(report->seconds) +
               ", kept as " + path) +
           "\n");
  }
}

void remark_uncalibrated(Engine& engine, Session& session) {
  AdaptiveKVCache* cache = session.cache();
  if (!cache || cache->calibration() || !wants_calibration(cache->config())) return;
  std::string codec;
  for (uint32_t l = 0; l < cache->config().num_layers && codec.empty(); ++l) codec = cache->archive_codec(l);
  remark(dim("no calibration of this model: the archive is " + codec + "; `tierkv calibrate -m " + engine.path() +
             "` makes it better") +
         "\n");
}

}  // namespace tierkv::cli
