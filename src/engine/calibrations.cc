// calibrations.cc — a calibration made from a prompt.
#include "engine/calibrations.h"

#include <algorithm>
#include <filesystem>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "engine/engine.h"
#include "engine/error.h"

namespace tierkv::engine {
namespace {

// Tokens of a long prompt that are read: more would keep the user waiting for little.
constexpr uint64_t kSelfCalibrationMost = 16384;

// The sample and the sums of a calibration are some hundred MB that the heap would keep for the rest of the session.
void give_back_heap() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace

bool lacks_calibration(Engine& engine, const std::vector<std::string>& kv) {
  return std::any_of(kv.begin(), kv.end(), [&](const std::string& setting) {
    const CacheConfig config = engine.config(setting);
    return wants_calibration(config) && !engine.calibration(config);
  });
}

Result<llama::CalibrateReport> calibrate_from_prompt(Engine& engine, std::span<const llama_token> prompt, const std::string& path,
                                                     const std::function<void(double share)>& on_progress) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  llama::CalibrateOptions options;
  options.tokens = kSelfCalibrationMost;
  options.threads = engine.threads();
  options.first_token = engine.tokenizer().first_token();
  options.model_file = engine.path();
  options.text_name = "a prompt";
  // Reading takes most of the time; the share is one for both parts.
  options.progress = [&](const llama::CalibrateProgress& p) {
    const bool reading = std::string_view(p.phase) == "reading";
    const double share = static_cast<double>(p.done) / static_cast<double>(std::max<uint64_t>(p.total, 1));
    if (on_progress) on_progress(reading ? 0.8 * share : 0.8 + 0.2 * share);
  };
  options.cancelled = [&] { return requested(engine.cancellation()); };
  // Every window starts with the first token by itself.
  const bool starts = options.first_token >= 0 && !prompt.empty() && prompt.front() == options.first_token;
  auto report = llama::calibrate(engine.shape(), {Tokens(prompt.begin() + (starts ? 1 : 0), prompt.end())}, path, options);
  give_back_heap();
  if (requested(engine.cancellation())) throw Cancelled();
  return report;
}

}  // namespace tierkv::engine
