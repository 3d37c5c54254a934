// report_charts.cc — which result goes on which axis.
#include "report_charts.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "terminal.h"

namespace tierkv::cli {
namespace {

using nlohmann::json;

json axis(const char* label, const char* scale, std::vector<double> ticks = {}) {
  json value = {{"label", label}, {"scale", scale}};
  if (!ticks.empty()) value["ticks"] = ticks;
  return value;
}

// 1, 2 and 5 of every decade that a divergence may have.
std::vector<double> decades() {
  std::vector<double> values;
  for (int power = -8; power <= 1; ++power) {
    for (const double digit : {1.0, 2.0, 5.0}) values.push_back(digit * std::pow(10.0, power));
  }
  return values;
}

json bits_axis(const char* label, const json& series) {
  json value = axis(label, "log", {0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32});
  double low = 16.0, high = 2.0;
  for (const json& one : series) {
    for (const json& point : one["points"]) {
      low = std::min(low, point[0].get<double>());
      high = std::max(high, point[0].get<double>());
    }
  }
  value["low"] = low / 1.15;
  value["high"] = high * 1.15;
  return value;
}

json series(const ResultName& name, const SettingColours& colours) {
  return {{"name", name.label()}, {"colour", colours.of(name.label())}, {"stock", name.stock}, {"points", json::array()}};
}

// The series of a setting; made at its first result.
json& series_of(json& all, const ResultName& name, const SettingColours& colours) {
  for (json& one : all) {
    if (one["name"] == name.label()) return one;
  }
  all.push_back(series(name, colours));
  return all.back();
}

// The points that no other beats in both x and y, from left to right. Less is better.
json frontier(const json& all) {
  std::vector<std::pair<double, double>> points;
  for (const json& one : all) {
    for (const json& point : one["points"]) points.emplace_back(point[0], point[1]);
  }
  std::sort(points.begin(), points.end());
  json best = json::array();
  for (const auto& [x, y] : points) {
    if (best.empty() || y < best.back()[1].get<double>()) best.push_back({x, y});
  }
  return best;
}

json scatter(const char* x, json y, json all) {
  json bits = bits_axis(x, all), best = frontier(all);
  return {
      {"kind", "scatter"}, {"x", std::move(bits)}, {"y", std::move(y)}, {"frontier", std::move(best)}, {"series", std::move(all)}};
}

void add_point(json& one, double x, double y, double error = 0.0) {
  if (!(x > 0) || !std::isfinite(x) || !std::isfinite(y)) return;
  one["points"].push_back({x, y, std::isfinite(error) ? error : 0.0});
}

void drop_empty(json& all) {
  json kept = json::array();
  for (json& one : all) {
    if (!one["points"].empty()) kept.push_back(std::move(one));
  }
  all = std::move(kept);
}

json speed_lines(const std::vector<SpeedResult>& results, const char* y_label, double SpeedResult::*value,
                 const SettingColours& colours) {
  json all = json::array();
  for (const SpeedResult& r : results) {
    json& one = series_of(all, r, colours);
    if (std::isfinite(r.*value)) one["points"].push_back({r.depth, r.*value, 0.0});
  }
  drop_empty(all);
  for (json& one : all) std::sort(one["points"].begin(), one["points"].end());
  const std::set<double> depths = [&] {
    std::set<double> found;
    for (const SpeedResult& r : results) found.insert(r.depth);
    return found;
  }();
  return {{"kind", "lines"},
          {"x", axis("tokens in the cache", "linear", {depths.begin(), depths.end()})},
          {"y", axis(y_label, "linear")},
          {"series", all}};
}

json ratio_bars(const std::vector<SpeedResult>& results, const SettingColours& colours) {
  std::set<double> depths;
  for (const SpeedResult& r : results) depths.insert(r.depth);
  json groups = json::array(), all = json::array();
  for (const double depth : depths) groups.push_back(human_count(static_cast<uint64_t>(depth)));
  for (const SpeedResult& r : results) {
    json& points = series_of(all, r, colours)["points"];
    while (points.size() < depths.size()) points.push_back({points.size(), nullptr, 0.0});
    if (std::isfinite(r.decode_ratio))
      points[static_cast<size_t>(std::distance(depths.begin(), depths.find(r.depth)))][1] = r.decode_ratio;
  }
  return {{"kind", "bars"},
          {"x", axis("tokens in the cache", "linear")},
          {"y", axis("ratio (above 1: faster)", "linear")},
          {"groups", groups},
          {"baseline", 1.0},
          {"series", all}};
}

}  // namespace

std::vector<Chart> quality_charts(const std::vector<QualityResult>& results, const SettingColours& colours) {
  std::vector<Chart> charts;
  std::set<double> contexts;
  for (const QualityResult& r : results) contexts.insert(r.ctx);
  for (const double ctx : contexts) {
    json perplexity = json::array(), divergence = json::array();
    for (const QualityResult& r : results) {
      if (r.ctx != ctx) continue;
      add_point(series_of(perplexity, r, colours), r.bits_total, r.delta, r.delta_se);
      if (r.kld > 0) add_point(series_of(divergence, r, colours), r.bits_total, r.kld);
    }
    drop_empty(perplexity), drop_empty(divergence);
    const std::string at = ctx > 0 ? ", windows of " + human_count(static_cast<uint64_t>(ctx)) + " tokens" : "";
    constexpr const char* kBits = "bits a value, everything counted";
    if (!perplexity.empty()) {
      charts.push_back(
          {"What a bit buys: perplexity" + at,
           "Lower and further left is better. Bars are paired standard errors. The dashed line joins the settings that no "
           "other beats in both.",
           scatter(
               kBits,
               axis("added to FP16's perplexity", "symlog", {-1, -0.3, -0.1, -0.03, 0, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 1000}),
               std::move(perplexity))});
    }
    if (!divergence.empty()) {
      charts.push_back(
          {"What a bit buys: divergence" + at,
           "KL divergence is steadier than perplexity. It sees every prediction that changed, not only the right token's.",
           scatter(kBits, axis("divergence from FP16 (nats)", "log", decades()), std::move(divergence))});
    }
  }
  return charts;
}

std::vector<Chart> speed_charts(const std::vector<SpeedResult>& results, const SettingColours& colours) {
  return {{"Decoding", "Tokens a second after a prompt of that many tokens, all settings taking turns in one process.",
           speed_lines(results, "tokens/s", &SpeedResult::decode_rate, colours)},
          {"Time between tokens, median", "The tails (P99) are in the table: on a shared machine they say more about the machine.",
           speed_lines(results, "milliseconds", &SpeedResult::p50_ms, colours)},
          {"Time to the first token", "How long a prompt of that many tokens takes to read.",
           speed_lines(results, "seconds", &SpeedResult::ttft, colours)},
          {"Decoding speed relative to stock f16", "By tokens in the cache, from the medians of the time between tokens.",
           ratio_bars(results, colours)}};
}

std::vector<Chart> recall_charts(const std::vector<QualityResult>& quality, const std::vector<RecallResult>& recall,
                                 const SettingColours& colours) {
  std::vector<Chart> charts;
  std::set<std::string> tasks;
  for (const RecallResult& r : recall) tasks.insert(r.task);
  for (const std::string& task : tasks) {
    json all = json::array();
    std::set<std::string> drawn;
    for (const QualityResult& q : quality) {
      double found = 0, asked = 0;
      for (const RecallResult& r : recall) {
        if (r.task == task && r.label() == q.label()) found += r.correct, asked += r.total;
      }
      if (asked == 0 || !(q.bits_archive > 0) || !drawn.insert(q.label()).second) continue;
      const double missed = 1.0 - found / asked;
      add_point(series_of(all, q, colours), q.bits_archive, 100.0 * missed, 100.0 * std::sqrt(missed * (1.0 - missed) / asked));
    }
    drop_empty(all);
    if (all.size() < 2) continue;
    charts.push_back(
        {"What a bit buys: recall, " + task,
         "What was hidden in a long text and not found again. Bars are standard errors of a share of that many trials.",
         scatter("bits a value in the coldest tier", axis("missed, percent", "linear"), std::move(all))});
  }
  return charts;
}

}  // namespace tierkv::cli
