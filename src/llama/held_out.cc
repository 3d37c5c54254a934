#include "llama/held_out.h"

#include <algorithm>
#include <span>

#include "base/f16.h"
#include "base/status_macros.h"
#include "learn/check.h"

namespace tierkv::llama {
namespace {

constexpr size_t kMostTokens = 2048;
constexpr size_t kLeastTokens = 1024;  // beside the distance from which on keys count

// The rows of one head in the frame of their blocks, and the metric of their errors.
learn::HeldOutHead head_of(const calib::Statistics& s, uint32_t layer, uint32_t head) {
  const uint32_t d = s.model.head_dim;
  const calib::Turner turner(s.ropes[layer], d);
  learn::HeldOutHead rows;
  for (uint32_t i = 0; i < s.sampled(); ++i) {
    const size_t at = (static_cast<size_t>(i) * s.model.kv_heads + head) * d;
    std::vector<float> key(d);
    for (uint32_t c = 0; c < d; ++c) {
      key[c] = f16_to_f32(s.layers[layer].keys[at + c]);
      rows.values.push_back(f16_to_f32(s.layers[layer].values[at + c]));
    }
    turner.turn(key.data(), 1, -static_cast<int64_t>(calib::block_start(s.positions[i], s.sinks, s.block)), key.data());
    rows.keys.insert(rows.keys.end(), key.begin(), key.end());
  }
  const calib::PairSums& pairs = s.pair_sums(layer, head);
  rows.metric = pairs.key_block;
  for (uint32_t c = 0; c < d && !pairs.value.empty(); ++c) rows.value_metric += pairs.value[static_cast<size_t>(c) * d + c] / d;
  return rows;
}

}  // namespace

TokenList held_out_window(const std::vector<TokenList>& texts, const std::vector<TokenList>& windows,
                          const CalibrateOptions& options) {
  const size_t first = options.first_token >= 0 ? 1 : 0, content = windows.front().size() - first;
  std::span<const int32_t> best;
  for (const TokenList& text : texts) {
    // Windows lie evenly spread from the beginning to the end (calibration_windows), so the first gap is as long as any.
    const auto has = [&](const TokenList& window) {
      return std::search(text.begin(), text.end(), window.begin() + static_cast<ptrdiff_t>(first), window.end()) != text.end();
    };
    const auto given = static_cast<size_t>(std::count_if(windows.begin(), windows.end(), has));
    if (given == 0 || text.size() < given * content) continue;
    const size_t spare = text.size() - given * content, gap = given > 1 ? spare / (given - 1) : spare;
    if (gap > best.size()) best = std::span(text).subspan(content, gap);
  }
  const size_t most = std::min<size_t>({kMostTokens, options.window, best.size()});
  if (most < kLeastTokens + options.distance) return {};
  TokenList window(best.begin(), best.begin() + static_cast<ptrdiff_t>(most - first));
  if (first != 0) window.insert(window.begin(), options.first_token);
  return window;
}

Result<HeldOutErrors> held_out_errors(const std::shared_ptr<const calib::Calibration>& calibration,
                                      const calib::Statistics& statistics) {
  HeldOutErrors sum;
  sum.tokens = statistics.tokens;
  TIERKV_ASSIGN_OR_RETURN(const auto tables, calibration->klt_tables());
  for (uint32_t l = 0; l < statistics.model.layers; ++l) {
    for (uint32_t h = 0; h < statistics.model.kv_heads; ++h) {
      const learn::HeldOutHead rows = head_of(statistics, l, h);
      if (tables->head(l, h).mean.empty() || rows.metric.empty() || rows.keys.empty()) continue;
      TIERKV_ASSIGN_OR_RETURN(const learn::HeadErrors errors, learn::held_out_errors(calibration, l, h, rows));
      sum.calibrated += errors.calibrated;
      sum.uncalibrated += errors.uncalibrated;
    }
  }
  return sum;
}

}  // namespace tierkv::llama
