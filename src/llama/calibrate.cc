#include "tierkv/calibrate.h"

#include <chrono>
#include <memory>

#include "base/file.h"
#include "base/status_macros.h"
#include "calib/calibration.h"
#include "learn/check.h"
#include "llama/collect.h"
#include "llama/held_out.h"
#include "llama/probe.h"
#include "solve/deep.h"
#include "solve/klt.h"
#include "solve/kvquant.h"
#include "solve/oscar.h"
#include "solve/squat.h"
#include "tierkv/c.h"

namespace tierkv::llama {
namespace {

constexpr double kShownBits = 1.5;  // of the summary by layer

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<double> bits_by_layer(const calib::KltTables& tables) {
  std::vector<double> bits(tables.layers, 0.0);
  const std::vector<calib::KltChoice> choices = tables.allocate(kShownBits, /*joint=*/false);
  for (size_t i = 0; i < choices.size(); ++i) {
    bits[i / tables.kv_heads] += 32.0 * choices[i].keys.total() / (static_cast<double>(tables.head_dim) * tables.kv_heads);
  }
  return bits;
}

// The tables of every codec that has some.
Status solve(const calib::Statistics& statistics, const CalibrateOptions& options, calib::Calibration& calibration) {
  // Each part of the work reports its own 0..1; klt takes most of the time.
  const auto part = [&](double from, double to) -> solve::Progress {
    return [&options, from, to](double done) {
      if (options.progress) options.progress({"solving", static_cast<uint64_t>(1000.0 * (from + (to - from) * done)), 1000});
    };
  };
  const auto stopped = [&] { return options.cancelled && options.cancelled(); };
  TIERKV_ASSIGN_OR_RETURN(calib::KltTables klt, solve::solve_klt(statistics, part(0.0, 0.8)));
  calibration.klt = std::make_shared<const calib::KltTables>(std::move(klt));
  if (stopped()) return error(StatusCode::failed_precondition, "calibration was stopped");
  TIERKV_ASSIGN_OR_RETURN(calib::KvquantTables kvquant, solve::solve_kvquant(statistics, part(0.8, 0.95)));
  calibration.kvquant = std::make_shared<const calib::KvquantTables>(std::move(kvquant));
  TIERKV_ASSIGN_OR_RETURN(calib::SquatTables squat, solve::solve_squat(statistics, part(0.95, 0.98)));
  calibration.squat = std::make_shared<const calib::SquatTables>(std::move(squat));
  TIERKV_ASSIGN_OR_RETURN(calib::OscarTables oscar, solve::solve_oscar(statistics, part(0.98, 1.0)));
  calibration.oscar = std::make_shared<const calib::OscarTables>(std::move(oscar));
  if (stopped()) return error(StatusCode::failed_precondition, "calibration was stopped");
  return Status();
}

// Refuses tables that text they were not made from is worse off with.
Status check_held_out(const ModelShape& shape, const std::vector<TokenList>& texts, const std::vector<TokenList>& windows,
                      const calib::Statistics& statistics, const CalibrateOptions& options,
                      const std::shared_ptr<const calib::KltTables>& klt, CalibrateReport& report) {
  const TokenList window = held_out_window(texts, windows, options);
  if (window.empty()) return {};
  CalibrateOptions once = options;
  once.sample_tokens = static_cast<uint32_t>(window.size());
  once.progress = {};
  TIERKV_ASSIGN_OR_RETURN(const Collected held, collect(shape, {window}, once));
  const auto plain = std::make_shared<calib::Calibration>(statistics, calib::Origin());
  plain->klt = klt;
  TIERKV_RETURN_IF_ERROR(plain->finish());
  TIERKV_ASSIGN_OR_RETURN(const HeldOutErrors errors, held_out_errors(plain, held.statistics));
  report.held_out_tokens = errors.tokens;
  report.held_out_error = errors.calibrated;
  report.held_out_without = errors.uncalibrated;
  if (errors.calibrated <= learn::kMostOfUncalibrated * errors.uncalibrated) return {};
  return error(StatusCode::failed_precondition, "tables from ", statistics.tokens,
               " tokens would not help: on text that they were not made from their error is ", errors.calibrated,
               ", that of an archive without them ", errors.uncalibrated, "; read more text, and more kinds of it");
}

// Weighs the tables by what errors do to predictions.
Status weigh(const ModelShape& shape, const std::vector<TokenList>& windows, const CalibrateOptions& options,
             const calib::Statistics& statistics, calib::Calibration& calibration, CalibrateReport& report) {
  const double start = now();
  const auto plain = std::make_shared<calib::Calibration>(statistics, calibration.origin);
  plain->klt = calibration.klt;
  TIERKV_RETURN_IF_ERROR(plain->finish());
  TIERKV_ASSIGN_OR_RETURN(const ProbeEffects effects, probe(shape, windows, plain, options));
  LayerWeights weights = weights_of(effects);
  auto weighed = std::make_shared<calib::KltTables>(*calibration.klt);
  weighed->weigh(weights.keys, weights.values);
  calibration.klt = std::move(weighed);
  for (uint32_t l = 0; l < shape.layers; ++l) {
    report.key_divergence.push_back(effects.keys[l].divergence);
    report.value_divergence.push_back(effects.values[l].divergence);
    report.floor_divergence.push_back(effects.keys[l].floor);
  }
  report.key_weights = std::move(weights.keys);
  report.value_weights = std::move(weights.values);
  report.probing_seconds = now() - start;
  return {};
}

}  // namespace

Result<CalibrateReport> calibrate(const ModelShape& shape, const std::vector<std::vector<int32_t>>& texts, const std::string& path,
                                  const CalibrateOptions& options) {
  const double start = now();
  TIERKV_ASSIGN_OR_RETURN(const std::vector<TokenList> windows, calibration_windows(texts, shape.context, options));
  TIERKV_ASSIGN_OR_RETURN(const Collected collected, collect(shape, windows, options));
  const double read = now();
  calib::Calibration calibration(collected.statistics,
                                 {options.text_name, collected.statistics.tokens, std::string("tierkv ") + tierkv_version()});
  TIERKV_RETURN_IF_ERROR(solve(collected.statistics, options, calibration));

  CalibrateReport report;
  TIERKV_RETURN_IF_ERROR(check_held_out(shape, texts, windows, collected.statistics, options, calibration.klt, report));
  if (options.probe) TIERKV_RETURN_IF_ERROR(weigh(shape, windows, options, collected.statistics, calibration, report));
  report.key_bits = bits_by_layer(*calibration.klt);
  if (options.deep) {
    TIERKV_ASSIGN_OR_RETURN(calib::DeepTables deep, solve::solve_deep(collected.statistics, [&](double done) {
                              if (options.progress) options.progress({"solving", static_cast<uint64_t>(1000.0 * done), 1000});
                            }));
    calibration.deep = std::make_shared<const calib::DeepTables>(std::move(deep));
  }
  std::vector<std::byte> file;
  TIERKV_RETURN_IF_ERROR(calibration.finish(&file));
  report.bytes = file.size();
  TIERKV_RETURN_IF_ERROR(write_file_atomic(path, std::span<const std::byte>(file)));

  report.fingerprint = shape.fingerprint;
  report.id = calibration.id_text();
  report.tokens = collected.statistics.tokens;
  report.sampled = collected.statistics.sampled();
  report.windows = windows.size();
  report.pairs = collected.pairs;
  report.without_residual = collected.without_residual;
  report.without_projection = collected.without_projection;
  report.seconds = now() - start;
  report.watching_seconds = collected.watching_seconds;
  report.solving_seconds = now() - read - report.probing_seconds;
  return report;
}

}  // namespace tierkv::llama
