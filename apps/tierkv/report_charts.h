// report_charts.h — the results of ppl, recall and bench as charts: what report_assets/charts.js gives to Chart.js.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report_data.h"
#include "setting_colours.h"

namespace tierkv::cli {

// A chart's data: {"kind": "scatter" | "lines" | "bars", "x": axis, "y": axis, "series": [...]} and, where it has them, "frontier"
// (points that a line joins), "groups" (of bars) and "baseline" (a line across). An axis is {"label", "scale": "linear" | "log" |
// "symlog"} and perhaps "ticks", "low", "high". A series is {"name", "colour", "stock", "points": [[x, y, error], ...]}; bars have
// one point for each group. What is missing or not finite is left out, or null in bars.
struct Chart {
  std::string title, caption;
  nlohmann::json data;
};

// Perplexity and divergence against bits, for each length of window.
std::vector<Chart> quality_charts(const std::vector<QualityResult>& results, const SettingColours& colours);
// Decoding, latency, first token, and the ratio to stock f16.
std::vector<Chart> speed_charts(const std::vector<SpeedResult>& results, const SettingColours& colours);
// Share missed against bits of the coldest tier, for each task and the settings that `quality` has bits for. None for fewer than
// two.
std::vector<Chart> recall_charts(const std::vector<QualityResult>& quality, const std::vector<RecallResult>& recall,
                                 const SettingColours& colours);

}  // namespace tierkv::cli
