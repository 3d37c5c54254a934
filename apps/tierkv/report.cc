// report.cc — `tierkv report`: one HTML page from saved results, with nothing to load from elsewhere.
#include <nlohmann/json.hpp>
#include <utility>

#include "commands.h"
#include "report_page.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

using nlohmann::json;

constexpr const char* kFooter =
    "Examples:\n"
    "  tierkv ppl --kv balanced --stock q8_0,q4_0 --json ppl.json\n"
    "  tierkv recall --kv fp16 --kv balanced --json recall.json\n"
    "  tierkv bench --json bench.json\n"
    "  tierkv report ppl.json recall.json bench.json -o report.html\n"
    "\n"
    "The page holds everything it shows, and works without a network. Charts are drawn by Chart.js, which is in the page.";

struct Request {
  Options options;
  std::vector<std::string> files;
  std::string out = "report.html", svg;
};

int run(Request& request) {
  Options& options = request.options;
  if (request.files.empty() && !options.json_file.empty()) request.files = {std::exchange(options.json_file, "")};
  settle(options);
  if (!request.svg.empty())
    bad_input(
        "--svg is gone: charts are in the page, where a browser can save each as a picture (tools/plots.py draws those of docs/)");
  if (request.files.empty()) bad_input("there are no results: give the JSON files that ppl, recall and bench wrote with --json");
  check_writable(request.out);
  Results results;
  json all = json::array();
  for (const std::string& file : request.files) add_file(results, file, all);
  const std::string page = make_page(results, this_run(), chart_library());
  write_file(request.out, [&](const Sink& sink) { sink(page.data(), page.size()); });
  if (options.text() && !options.quiet) std::printf("%s\n", request.out.c_str());
  emit_json(options, {{"command", "report"}, {"written", {request.out}}, {"results", all}});
  return 0;
}

}  // namespace

void add_report(CLI::App& app, Action& action) {
  const auto [command, request] =
      add_command<Request>(app, action, "report", "One HTML page from the JSON of ppl, recall and bench", kFooter, run);
  command->add_option("results", request->files, "files that ppl, recall and bench wrote with --json")->type_name("RESULT.json");
  command->add_option("-o,--out", request->out, "the page")->type_name("FILE")->capture_default_str();
  command->add_option("--svg", request->svg)->type_name("DIR")->group("");  // hidden: says where the plots went
  add_output_options(*command, request->options);
}

}  // namespace tierkv::cli
