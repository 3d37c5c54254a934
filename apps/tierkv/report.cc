// report.cc — `tierkv report`: one HTML page from saved results, with nothing to load from elsewhere.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "commands.h"
#include "report_plots.h"
#include "svg.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

using nlohmann::json;
using svg::escape;

constexpr const char* kFooter =
    "Examples:\n"
    "  tierkv ppl --kv balanced --stock q8_0,q4_0 --json ppl.json\n"
    "  tierkv recall --kv fp16 --kv balanced --json recall.json\n"
    "  tierkv bench --json bench.json\n"
    "  tierkv report ppl.json recall.json bench.json -o report.html\n"
    "  tierkv report ppl.json --svg docs/plots                     the plots as files of their own";

constexpr const char* kStyle =
    "body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:960px;margin:2em auto;padding:0 1em}"
    "h1{font-size:1.6em}h2{margin-top:2em;border-bottom:1px solid #ddd}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px;margin:1em 0}"
    "th,td{padding:.25em .7em;text-align:right;border-bottom:1px solid #eee}th:first-child,td:first-child{text-align:left}"
    "figure{margin:1.5em 0}figure svg{max-width:100%;height:auto}figcaption{color:#555;font-size:13px}.wide{overflow-x:auto}";

struct Request {
  Options options;
  std::vector<std::string> files;
  std::string out, svg;
};

std::string cell(const char* pattern, double value) { return std::isfinite(value) ? format(pattern, value) : "–"; }

class HtmlTable {
 public:
  explicit HtmlTable(std::initializer_list<const char*> headers) {
    for (const char* header : headers) text_ += "<th>" + escape(header) + "</th>";
    text_ = "<div class=\"wide\"><table><thead><tr>" + text_ + "</tr></thead><tbody>\n";
  }
  void add(std::initializer_list<std::string> cells) {
    text_ += "<tr>";
    for (const std::string& one : cells) text_ += "<td>" + escape(one) + "</td>";
    text_ += "</tr>\n";
  }
  std::string str() const { return text_ + "</tbody></table></div>\n"; }

 private:
  std::string text_;
};

std::string quality_table(const std::vector<QualityResult>& results) {
  HtmlTable table({"setting", "window", "PPL", "ΔPPL", "± se", "KLD", "top-1 %", "bits, coldest tier", "bits in all", "resident",
                   "tokens", "tokens/s"});
  for (const QualityResult& r : results) {
    table.add({r.label(), r.ctx > 0 ? format("%g", r.ctx) : "–", cell("%.4f", r.ppl), cell("%+.4f", r.delta),
               cell("%.4f", r.delta_se), cell("%.5f", r.kld), cell("%.2f", 100 * r.top1), cell("%.2f", r.bits_archive),
               cell("%.2f", r.bits_total), std::isfinite(r.resident) ? human_bytes(r.resident) : "–", cell("%.0f", r.tokens),
               cell("%.0f", r.seconds > 0 ? r.tokens / r.seconds : std::nan(""))});
  }
  return table.str();
}

std::string recall_table(const std::vector<RecallResult>& results) {
  struct Sum {
    std::string task, label;
    double ctx, correct, total;
  };
  std::vector<Sum> sums;
  for (const RecallResult& r : results) {
    auto found = std::find_if(sums.begin(), sums.end(),
                              [&](const Sum& s) { return s.task == r.task && s.label == r.label() && s.ctx == r.ctx; });
    if (found == sums.end()) found = sums.insert(sums.end(), {r.task, r.label(), r.ctx, 0, 0});
    found->correct += r.correct;
    found->total += r.total;
  }
  HtmlTable table({"setting", "task", "tokens", "found", "of", "%"});
  for (const Sum& s : sums)
    table.add({s.label, s.task, format("%g", s.ctx), format("%g", s.correct), format("%g", s.total),
               format("%.0f", 100 * s.correct / s.total)});
  return table.str();
}

std::string speed_table(const std::vector<SpeedResult>& results) {
  HtmlTable table({"setting", "depth", "prefill t/s", "ratio", "first token s", "decode t/s", "ratio", "P50 ms", "P99 ms", "host %",
                   "resident"});
  for (const SpeedResult& r : results) {
    const bool prefilled = r.depth > 0;
    table.add({r.label(), format("%g", r.depth), prefilled ? cell("%.0f", r.prefill_rate) : "–",
               prefilled ? cell("%.2f", r.prefill_ratio) : "–", cell("%.2f", r.ttft), cell("%.1f", r.decode_rate),
               cell("%.2f", r.decode_ratio), cell("%.1f", r.p50_ms), cell("%.1f", r.p99_ms), cell("%.1f", 100 * r.host_share),
               std::isfinite(r.resident) ? human_bytes(r.resident) : "–"});
  }
  return table.str();
}

std::string figure(const Plot& plot) {
  return "<figure>" + plot.svg + (plot.caption.empty() ? "" : "<figcaption>" + escape(plot.caption) + "</figcaption>") +
         "</figure>\n";
}

template <class Row>
std::vector<Row> of_model(const std::vector<Row>& rows, const std::string& model) {
  std::vector<Row> kept;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(kept), [&](const Row& row) { return row.model == model; });
  return kept;
}

std::vector<std::string> models_of(const Results& results) {
  std::vector<std::string> models;
  auto add = [&](const auto& rows) {
    for (const auto& row : rows)
      if (std::find(models.begin(), models.end(), row.model) == models.end()) models.push_back(row.model);
  };
  add(results.quality);
  add(results.recall);
  add(results.speed);
  return models;
}

struct Page {
  std::string html;
  std::vector<Plot> plots;
};

// A model's name as a part of a file's.
std::string slug(const std::string& name) {
  std::string text;
  for (const char c : name)
    text += std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::tolower(static_cast<unsigned char>(c))) : '-';
  return text;
}

Page make_page(const Results& results) {
  Page page;
  const std::vector<std::string> models = models_of(results);
  page.html =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">"
      "<title>tierkv report</title><style>" +
      std::string(kStyle) + "</style></head><body>\n<h1>tierkv: quality, recall, speed</h1>\n";
  for (const std::string& model : models) {
    auto show = [&](Plot plot) {
      if (models.size() > 1) plot.name = slug(model) + "-" + plot.name;
      page.html += figure(plot);
      page.plots.push_back(std::move(plot));
    };
    if (!model.empty()) page.html += "<h2>" + escape(model) + "</h2>\n";
    if (const auto rows = of_model(results.quality, model); !rows.empty()) {
      page.html += "<h3>Quality</h3>\n";
      for (Plot& plot : quality_plots(rows)) show(std::move(plot));
      page.html += quality_table(rows);
    }
    if (const auto rows = of_model(results.recall, model); !rows.empty()) {
      page.html += "<h3>Recall</h3>\n";
      show({"recall", recall_plot(rows), "Exact matches, by where in the text the number was hidden."});
      for (Plot& plot : recall_by_bits(of_model(results.quality, model), rows)) show(std::move(plot));
      page.html += recall_table(rows);
    }
    if (const auto rows = of_model(results.speed, model); !rows.empty()) {
      page.html += "<h3>Speed</h3>\n";
      for (Plot& plot : speed_plots(rows)) show(std::move(plot));
      page.html += speed_table(rows);
    }
  }
  page.html += "<p>Made by tierkv " TIERKV_VERSION " from saved results.</p>\n</body></html>\n";
  return page;
}

void write_text(const std::string& path, const std::string& text) {
  write_file(path, [&](const Sink& sink) { sink(text.data(), text.size()); });
}

int run(Request& request) {
  Options& options = request.options;
  if (request.files.empty() && !options.json_file.empty()) request.files = {std::exchange(options.json_file, "")};
  settle(options);
  if (request.files.empty()) bad_input("there are no results: give the JSON files that ppl, recall and bench wrote with --json");
  check_writable(request.out);
  Results results;
  json all = json::array();
  for (const std::string& file : request.files) add_file(results, file, all);
  if (request.out.empty() && request.svg.empty()) request.out = "report.html";
  const Page page = make_page(results);
  json written = json::array();
  if (!request.svg.empty()) {
    std::error_code problem;
    std::filesystem::create_directories(request.svg, problem);
    if (problem) bad_input("cannot make the folder " + request.svg + ": " + problem.message());
    for (const Plot& plot : page.plots) {
      written.push_back(request.svg + "/" + plot.name + ".svg");
      write_text(written.back(), plot.svg);
    }
  }
  if (!request.out.empty()) {
    write_text(request.out, page.html);
    written.push_back(request.out);
  }
  if (options.text() && !options.quiet) {
    for (const json& path : written) std::printf("%s\n", path.get<std::string>().c_str());
  }
  emit_json(options, {{"command", "report"}, {"written", written}, {"results", all}});
  return 0;
}

}  // namespace

void add_report(CLI::App& app, Action& action) {
  const auto [command, request] =
      add_command<Request>(app, action, "report", "One HTML page from the JSON of ppl, recall and bench", kFooter, run);
  command->add_option("results", request->files, "files that ppl, recall and bench wrote with --json")->type_name("RESULT.json");
  command->add_option("-o,--out", request->out, "the page (default: report.html, unless --svg is given)")->type_name("FILE");
  command->add_option("--svg", request->svg, "write the plots into this folder as SVG files")->type_name("DIR");
  add_output_options(*command, request->options);
}

}  // namespace tierkv::cli
