#include "calibrations.h"

#include <algorithm>
#include <filesystem>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "common.h"
#include "eval_common.h"
#include "terminal.h"
#include "tierkv/calibrate.h"

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

namespace tierkv::cli {
namespace {

constexpr uint64_t kSelfCalibrationMost =
    16384;  // tokens of a long prompt that are read: more would keep the user waiting for little

// The sample and the sums of a calibration are some hundred MB that the heap would keep for the rest of the session.
void give_back_heap() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace

CalibrationPtr shipped_calibration([[maybe_unused]] const llama::ModelShape& shape) {
#ifdef TIERKV_SHIPPED_CALIBRATION
  static const CalibrationPtr calibration = take(parse_calibration({tierkv_shipped_calibration, tierkv_shipped_calibration_end},
                                                                   "the calibration that ships with tierkv", /*bytes_stay=*/true),
                                                 "");
  if (check_fit(*calibration, shape.identity()).ok()) return calibration;
#endif
  return nullptr;
}

void self_calibrate(Engine& engine, std::span<const llama_token> prompt, const std::vector<std::string>& kv, bool quiet) {
  const auto needs_one = [&](const std::string& setting) {
    const CacheConfig config = engine.config(setting);
    return wants_calibration(config) && !engine.calibration(config);
  };
  if (std::none_of(kv.begin(), kv.end(), needs_one)) return;
  if (prompt.size() < kSelfCalibrationTokens) {
    if (!quiet) {
      remark(format("--self-calibrate: the prompt has %zu tokens, and calibration needs %zu: the archive stays uncalibrated\n",
                    prompt.size(), kSelfCalibrationTokens));
    }
    return;
  }
  const std::string path = llama::calibration_path(engine.shape());
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  Progress progress("calibrating from the prompt", 1000, quiet);
  llama::CalibrateOptions options;
  options.tokens = kSelfCalibrationMost;
  options.threads = engine.threads();
  options.first_token = first_token(engine);
  options.model_file = engine.path();
  options.text_name = "a prompt";
  // Reading takes most of the time; the bar is one for both parts.
  options.progress = [&](const llama::CalibrateProgress& p) {
    const bool reading = std::string_view(p.phase) == "reading";
    const double share = static_cast<double>(p.done) / static_cast<double>(std::max<uint64_t>(p.total, 1));
    progress.update(static_cast<uint64_t>(reading ? 800.0 * share : 800.0 + 200.0 * share));
  };
  options.cancelled = [] { return interrupted(); };
  // Every window starts with the first token by itself.
  const bool starts = options.first_token >= 0 && prompt.front() == options.first_token;
  const auto report = llama::calibrate(engine.shape(), {Tokens(prompt.begin() + (starts ? 1 : 0), prompt.end())}, path, options);
  progress.finish();
  give_back_heap();
  if (interrupted()) throw Interrupted();
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
             "` makes it smaller and better") +
         "\n");
}

}  // namespace tierkv::cli
