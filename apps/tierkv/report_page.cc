// report_page.cc — HTML out.
#include "report_page.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "report_charts.h"
#include "terminal.h"

namespace tierkv::cli {

extern const char* const kEmbeddedChartLibrary;  // made by the build
extern const char* const kEmbeddedReportScript;
extern const char* const kEmbeddedReportStyle;

namespace {

using nlohmann::json;

constexpr const char* kPolicy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";
constexpr const char* kNoCharts =
    "This page has no charts, only tables: Chart.js, which draws them, could not be fetched when this tierkv was built.";

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string cell(const char* pattern, double value) { return std::isfinite(value) ? format(pattern, value) : "–"; }

class Page {
 public:
  Page(const Results& results, bool charts) : results_(results), with_charts_(charts), colours_(names(results)) {}

  std::string body() {
    for (const std::string& model : models()) {
      if (!model.empty()) html_ += "<h2>" + escape(model) + "</h2>\n";
      const auto quality = of_model(results_.quality, model);
      const auto recall = of_model(results_.recall, model);
      const auto speed = of_model(results_.speed, model);
      if (!quality.empty()) {
        html_ += "<h3>Quality</h3>\n";
        show(quality_charts(quality, colours_));
        quality_table(quality);
      }
      if (!recall.empty()) {
        html_ += "<h3>Recall</h3>\n";
        recall_maps(recall);
        show(recall_charts(quality, recall, colours_));
        recall_table(recall);
      }
      if (!speed.empty()) {
        html_ += "<h3>Speed</h3>\n";
        show(speed_charts(speed, colours_));
        speed_table(speed);
      }
    }
    return std::move(html_);
  }
  const json& charts() const { return charts_; }

 private:
  static std::vector<std::string> names(const Results& results) {
    std::vector<std::string> all;
    for (const auto& r : results.quality) all.push_back(r.label());
    for (const auto& r : results.recall) all.push_back(r.label());
    for (const auto& r : results.speed) all.push_back(r.label());
    return all;
  }

  std::vector<std::string> models() const {
    std::vector<std::string> found;
    auto add = [&](const auto& rows) {
      for (const auto& row : rows)
        if (std::find(found.begin(), found.end(), row.model) == found.end()) found.push_back(row.model);
    };
    add(results_.quality), add(results_.recall), add(results_.speed);
    return found;
  }

  template <class Row>
  static std::vector<Row> of_model(const std::vector<Row>& rows, const std::string& model) {
    std::vector<Row> kept;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(kept), [&](const Row& row) { return row.model == model; });
    return kept;
  }

  std::string dot(const std::string& name, bool stock) const {
    return std::string("<span class=\"dot") + (stock ? " stock" : "") + "\" style=\"background:" + colours_.of(name) + "\"></span>";
  }

  void show(std::vector<Chart> charts) {
    if (!with_charts_) return;
    for (Chart& chart : charts) {
      std::string key;
      for (const json& one : chart.data["series"]) {
        const std::string name = one["name"];
        key += "<li>" + dot(name, one["stock"]) + escape(name) + "</li>";
      }
      html_ += "<figure><h4>" + escape(chart.title) + "</h4><ul class=\"key\">" + key + "</ul>" +
               format("<div class=\"plot\"><canvas data-chart=\"%zu\" role=\"img\" aria-label=\"", charts_.size()) +
               escape(chart.title) + "\"></canvas></div><figcaption>" + escape(chart.caption) + "</figcaption></figure>\n";
      charts_.push_back(std::move(chart.data));
    }
  }

  void head(std::initializer_list<const char*> headers) {
    html_ += "<div class=\"wide\"><table><thead><tr>";
    for (const char* header : headers) html_ += "<th>" + escape(header) + "</th>";
    html_ += "</tr></thead><tbody>\n";
  }
  void row(const ResultName& name, std::initializer_list<std::string> cells) {
    html_ += "<tr><td>" + dot(name.label(), name.stock) + escape(name.label()) + "</td>";
    for (const std::string& one : cells) html_ += "<td>" + escape(one) + "</td>";
    html_ += "</tr>\n";
  }
  void foot() { html_ += "</tbody></table></div>\n"; }

  void quality_table(const std::vector<QualityResult>& results) {
    head({"setting", "window", "PPL", "ΔPPL", "± se", "KLD", "top-1 %", "bits, coldest tier", "bits in all", "resident", "tokens",
          "tokens/s"});
    for (const QualityResult& r : results) {
      row(r, {r.ctx > 0 ? format("%g", r.ctx) : "–", cell("%.4f", r.ppl), cell("%+.4f", r.delta), cell("%.4f", r.delta_se),
              cell("%.5f", r.kld), cell("%.2f", 100 * r.top1), cell("%.2f", r.bits_archive), cell("%.2f", r.bits_total),
              std::isfinite(r.resident) ? human_bytes(r.resident) : "–", cell("%.0f", r.tokens),
              cell("%.0f", r.seconds > 0 ? r.tokens / r.seconds : std::nan(""))});
    }
    foot();
  }

  // Several runs add up.
  struct Count {
    double correct = 0, total = 0;
    std::string text() const { return total > 0 ? format("%g/%g", correct, total) : ""; }
  };
  template <class Fits>
  static Count count(const std::vector<RecallResult>& results, Fits fits) {
    Count sum;
    for (const RecallResult& r : results) {
      if (fits(r)) sum.correct += r.correct, sum.total += r.total;
    }
    return sum;
  }

  // For each task and setting a small table: lengths down, depths across.
  void recall_maps(const std::vector<RecallResult>& results) {
    std::vector<const RecallResult*> panels;
    std::set<double> contexts, depths;
    for (const RecallResult& r : results) {
      contexts.insert(r.ctx), depths.insert(r.depth);
      if (std::none_of(panels.begin(), panels.end(),
                       [&](const RecallResult* p) { return p->task == r.task && p->label() == r.label(); }))
        panels.push_back(&r);
    }
    std::stable_sort(panels.begin(), panels.end(), [](const auto* a, const auto* b) { return a->task > b->task; });
    html_ +=
        "<p>Found of asked. Down: tokens of text. Across: where in it the thing was hidden, in percent.</p>\n<div class=\"maps\">";
    for (const RecallResult* panel : panels) {
      auto here = [&](const RecallResult& r) { return r.task == panel->task && r.label() == panel->label(); };
      html_ += "<div><h4>" + dot(panel->label(), panel->stock) + escape(panel->task + ", " + panel->label() + ": ") +
               count(results, here).text() + "</h4><div class=\"wide\"><table><thead><tr><th>tokens</th>";
      for (const double depth : depths) html_ += format("<th>%g</th>", depth);
      html_ += "</tr></thead><tbody>\n";
      for (const double ctx : contexts) {
        html_ += "<tr><td>" + human_count(static_cast<uint64_t>(ctx)) + "</td>";
        for (const double depth : depths) {
          const Count sum = count(results, [&](const RecallResult& r) { return here(r) && r.ctx == ctx && r.depth == depth; });
          const char* kind = sum.total == 0 ? "" : sum.correct == sum.total ? "found" : sum.correct > 0 ? "part" : "none";
          html_ += std::string("<td class=\"") + kind + "\">" + sum.text() + "</td>";
        }
        html_ += "</tr>\n";
      }
      html_ += "</tbody></table></div></div>\n";
    }
    html_ += "</div>\n";
  }

  void recall_table(const std::vector<RecallResult>& results) {
    head({"setting", "task", "tokens", "found", "of", "%"});
    std::vector<const RecallResult*> shown;
    for (const RecallResult& r : results) {
      auto same = [&](const RecallResult& o) { return o.task == r.task && o.label() == r.label() && o.ctx == r.ctx; };
      if (std::any_of(shown.begin(), shown.end(), [&](const RecallResult* o) { return same(*o); })) continue;
      shown.push_back(&r);
      const Count sum = count(results, same);
      row(r, {r.task, format("%g", r.ctx), format("%g", sum.correct), format("%g", sum.total),
              format("%.0f", 100 * sum.correct / sum.total)});
    }
    foot();
  }

  void speed_table(const std::vector<SpeedResult>& results) {
    head({"setting", "depth", "prefill t/s", "ratio", "first token s", "decode t/s", "ratio", "P50 ms", "P99 ms", "host %",
          "resident"});
    for (const SpeedResult& r : results) {
      const bool prefilled = r.depth > 0;
      row(r,
          {format("%g", r.depth), prefilled ? cell("%.0f", r.prefill_rate) : "–", prefilled ? cell("%.2f", r.prefill_ratio) : "–",
           cell("%.2f", r.ttft), cell("%.1f", r.decode_rate), cell("%.2f", r.decode_ratio), cell("%.1f", r.p50_ms),
           cell("%.1f", r.p99_ms), cell("%.1f", 100 * r.host_share), std::isfinite(r.resident) ? human_bytes(r.resident) : "–"});
    }
    foot();
  }

  const Results& results_;
  bool with_charts_;
  SettingColours colours_;
  std::string html_;
  json charts_ = json::array();
};

std::string described(const RunNote& note) {
  std::string html = "<dl>";
  auto line = [&](const char* what, const std::string& value, bool code = false) {
    const std::string text = value.empty() ? "not recorded" : escape(value);
    html += std::string("<dt>") + what + "</dt><dd>" + (code && !value.empty() ? "<code>" + text + "</code>" : text) + "</dd>";
  };
  line("command", note.run.arguments.empty() ? note.command : note.run.arguments, true);
  line("model", note.model);
  if (note.command != "bench") {
    line("text", note.text);
    line(note.command == "ppl" ? "windows" : "lengths", note.windows);
  }
  line("date", note.run.date);
  line("machine", note.run.machine);
  line("version", note.run.version.empty() ? "" : "tierkv " + note.run.version);
  return html + "</dl>\n";
}

// Data inside a script element: "<" could end it.
std::string script_data(const json& value) {
  std::string out;
  for (const char c : value.dump(-1, ' ', false, json::error_handler_t::replace))
    out += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return out;
}

}  // namespace

std::string chart_library() {
  std::string text = kEmbeddedChartLibrary;
  // The map of its source stays behind: a browser's tools would look for it.
  if (const size_t map = text.rfind("//# sourceMappingURL="); map != std::string::npos) text.resize(map);
  return text;
}

std::string make_page(const Results& results, const RunRecord& self, const std::string& library) {
  Page page(results, !library.empty());
  const std::string body = page.body();
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\"><meta http-equiv=\"Content-Security-Policy\" content=\"" +
      std::string(kPolicy) + "\">\n<title>tierkv report</title>\n<style>\n" + kEmbeddedReportStyle +
      "</style></head><body>\n<h1>tierkv: quality, recall, speed</h1>\n<p>Made on " + escape(self.date) + " by tierkv " +
      escape(self.version) + ": <code>" + escape(self.arguments) + "</code></p>\n";
  if (library.empty()) html += "<p><strong>" + std::string(kNoCharts) + "</strong></p>\n";
  else html += "<noscript><p><strong>The charts need JavaScript; the tables do not.</strong></p></noscript>\n";
  html += body + "<h2>How it was measured</h2>\n";
  for (const RunNote& note : results.runs) html += described(note);
  if (!page.charts().empty()) {
    html += "<script type=\"application/json\" id=\"charts\">" + script_data(page.charts()) + "</script>\n<script>\n" + library +
            "\n</script>\n<script>\n" + kEmbeddedReportScript + "</script>\n";
  }
  return html + "</body></html>\n";
}

}  // namespace tierkv::cli
