// report_plots.cc — which result goes on which axis.
#include "report_plots.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "svg.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

// A number for each label, in order of appearance: the same setting looks the same in every plot of a set.
class Styles {
 public:
  int of(const std::string& label) { return numbers_.try_emplace(label, static_cast<int>(numbers_.size())).first->second; }

 private:
  std::map<std::string, int> numbers_;
};

std::string ctx_text(double ctx) { return format("%g", ctx); }

std::vector<svg::Line> lines_of(const std::vector<SpeedResult>& results, double (*value)(const SpeedResult&)) {
  std::vector<svg::Line> lines;
  Styles styles;
  for (const SpeedResult& r : results) {
    const std::string label = short_label(r);
    auto found = std::find_if(lines.begin(), lines.end(), [&](const svg::Line& line) { return line.name == label; });
    if (found == lines.end()) found = lines.insert(lines.end(), {label, {}, styles.of(label), r.stock});
    found->points.emplace_back(r.depth, value(r));
  }
  for (svg::Line& line : lines) std::sort(line.points.begin(), line.points.end());
  return lines;
}

svg::Axis depth_axis() { return {"tokens in the cache", svg::Scale::linear, 0.01, true, {}}; }

}  // namespace

std::string short_label(const ResultName& name) {
  std::string text = name.label();
  const size_t slash = text.find_last_of('/');
  if (!name.stock && slash != std::string::npos && text.find('=') == std::string::npos)
    text = text.substr(slash + 1);  // a file's path
  if (text.size() > 40) text = text.substr(0, 39) + "…";
  return text;
}

std::vector<Plot> quality_plots(const std::vector<QualityResult>& results) {
  std::vector<Plot> plots;
  std::set<double> contexts;
  for (const QualityResult& r : results) contexts.insert(r.ctx);
  for (const double ctx : contexts) {
    std::vector<svg::Mark> perplexity, divergence;
    for (const QualityResult& r : results) {
      if (r.ctx != ctx) continue;
      const int style = r.stock ? 1 : 0;
      perplexity.push_back({r.bits_total, r.delta, r.delta_se, short_label(r), style});
      if (r.kld > 0) divergence.push_back({r.bits_total, r.kld, 0.0, short_label(r), style});
    }
    const std::string suffix = contexts.size() > 1 ? "-" + ctx_text(ctx) : "";
    const std::string at = ctx > 0 ? ", windows of " + ctx_text(ctx) + " tokens" : "";
    const svg::Axis bits{
        "bits per key or value, everything counted", svg::Scale::log, 0.01, false, {0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32}};
    plots.push_back({"pareto" + suffix,
                     svg::scatter("What a bit buys: perplexity" + at, bits,
                                  {"ΔPPL against FP16", svg::Scale::symlog, 0.01, false, {}}, perplexity, true),
                     "Lower and further left is better. Bars are paired standard errors; the dashed line joins the settings that "
                     "no other beats in "
                     "both; squares are libllama's own cache types."});
    plots.push_back(
        {"divergence" + suffix,
         svg::scatter("What a bit buys: divergence" + at, bits,
                      {"mean KL divergence from FP16 (nats)", svg::Scale::log, 0.01, false, {}}, divergence, true),
         "KL divergence is steadier than perplexity: it sees every prediction that changed, not only the right token's."});
  }
  return plots;
}

std::vector<Plot> speed_plots(const std::vector<SpeedResult>& results) {
  std::vector<Plot> plots;
  if (results.empty()) return plots;
  plots.push_back({"decode",
                   svg::lines("Decoding", depth_axis(), {"tokens/s", svg::Scale::linear, 0.01, true, {}},
                              lines_of(results, [](const SpeedResult& r) { return r.decode_rate; })),
                   "Tokens a second after a prompt of that many tokens, all settings taking turns in one process."});
  plots.push_back({"latency",
                   svg::lines("Time between tokens, median", depth_axis(), {"milliseconds", svg::Scale::linear, 0.01, true, {}},
                              lines_of(results, [](const SpeedResult& r) { return r.p50_ms; })),
                   "The tails (P99) are in the table: on a shared machine they say more about the machine."});
  plots.push_back({"first-token",
                   svg::lines("Time to the first token", depth_axis(), {"seconds", svg::Scale::linear, 0.01, true, {}},
                              lines_of(results, [](const SpeedResult& r) { return r.ttft; })),
                   "How long a prompt of that many tokens takes to read."});
  std::vector<std::string> groups;
  std::vector<svg::BarSeries> series;
  std::set<double> depths;
  for (const SpeedResult& r : results) depths.insert(r.depth);
  for (const double depth : depths) groups.push_back(ctx_text(depth));
  for (const svg::Line& line : lines_of(results, [](const SpeedResult& r) { return r.decode_ratio; })) {
    svg::BarSeries one{line.name, std::vector<double>(groups.size(), std::numeric_limits<double>::quiet_NaN()), line.style};
    for (const auto& [depth, ratio] : line.points)
      one.values[static_cast<size_t>(std::distance(depths.begin(), depths.find(depth)))] = ratio;
    series.push_back(std::move(one));
  }
  plots.push_back(
      {"decode-ratio",
       svg::bars("Decoding speed relative to stock f16", "tokens in the cache", "ratio (above 1: faster)", groups, series, 1.0),
       "By tokens in the cache, from the medians of the time between tokens."});
  return plots;
}

std::vector<Plot> recall_by_bits(const std::vector<QualityResult>& quality, const std::vector<RecallResult>& recall) {
  std::vector<Plot> plots;
  std::set<std::string> tasks;
  for (const RecallResult& r : recall) tasks.insert(r.task);
  for (const std::string& task : tasks) {
    std::vector<svg::Mark> marks;
    std::set<std::string> drawn;
    for (const QualityResult& q : quality) {
      double found = 0, asked = 0;
      for (const RecallResult& r : recall) {
        if (r.task == task && r.label() == q.label()) found += r.correct, asked += r.total;
      }
      if (asked == 0 || !(q.bits_archive > 0) || !drawn.insert(q.label()).second) continue;
      const double missed = 1.0 - found / asked;
      marks.push_back(
          {q.bits_archive, 100.0 * missed, 100.0 * std::sqrt(missed * (1.0 - missed) / asked), short_label(q), q.stock ? 1 : 0});
    }
    if (marks.size() < 2) continue;
    plots.push_back(
        {"recall-bits-" + task,
         svg::scatter("What a bit buys: recall, " + task,
                      {"bits per value of the coldest tier, everything counted",
                       svg::Scale::log,
                       0.01,
                       false,
                       {1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 2.75, 3, 3.5, 4, 6, 8, 12, 16}},
                      {"missed, percent", svg::Scale::linear, 0.01, true, {}}, marks, true),
         "Numbers that were hidden in a long text and not found again. Bars are standard errors of a share of that many trials."});
  }
  return plots;
}

std::string recall_plot(const std::vector<RecallResult>& results) {
  // Task, then setting, in order of appearance; contexts and depths sorted.
  std::vector<std::pair<std::string, std::string>> panels;
  std::set<double> contexts, depths;
  for (const RecallResult& r : results) {
    const std::pair key(r.task, short_label(r));
    if (std::find(panels.begin(), panels.end(), key) == panels.end()) panels.push_back(key);
    contexts.insert(r.ctx);
    depths.insert(r.depth);
  }
  std::stable_sort(panels.begin(), panels.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });  // passkey before lines
  std::vector<svg::HeatMap> maps;
  for (const auto& [task, label] : panels) {
    svg::HeatMap map;
    uint64_t correct = 0, total = 0;
    for (const double depth : depths) map.columns.push_back(format("%g", depth));
    for (const double ctx : contexts) {
      map.rows.push_back(format("%g", ctx));
      map.values.emplace_back(depths.size(), std::numeric_limits<double>::quiet_NaN());
      map.texts.emplace_back(depths.size());
      size_t column = 0;
      for (const double depth : depths) {
        double found = 0, asked = 0;  // several runs add up
        for (const RecallResult& r : results) {
          if (r.task == task && short_label(r) == label && r.ctx == ctx && r.depth == depth) found += r.correct, asked += r.total;
        }
        if (asked > 0) {
          map.values.back()[column] = found / asked;
          map.texts.back()[column] = format("%g/%g", found, asked);
          correct += static_cast<uint64_t>(found), total += static_cast<uint64_t>(asked);
        }
        ++column;
      }
    }
    map.title = task + ", " + label +
                format(": %llu of %llu", static_cast<unsigned long long>(correct), static_cast<unsigned long long>(total));
    maps.push_back(std::move(map));
  }
  const int across = depths.size() > 8 ? 1 : 2;
  return svg::heat_maps("Numbers found again", "depth in percent", "tokens", maps, across);
}

}  // namespace tierkv::cli
