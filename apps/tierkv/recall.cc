// recall.cc — `tierkv recall`: does the model still find what it read? Exact match by greedy generation, over lengths and depths
// (recall_run.h asks).
#include <algorithm>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "engine/files.h"
#include "load_engine.h"
#include "number_range.h"
#include "png.h"
#include "recall_run.h"
#include "report_plots.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

using nlohmann::json;

constexpr const char* kFooter =
    "Examples:\n"
    "  tierkv recall --kv fp16 --kv balanced --ctx 2048,4096 --plot recall.svg\n"
    "  tierkv recall --task lines --keys 16 --kv compact --stock q4_0 --json recall.json\n"
    "  tierkv recall --haystack book.txt --ctx 8192 --depths 5,25,50,75,95 --trials 4\n"
    "  tierkv recall --deep 32 --kv fp16,sinks=4,calibration=deep.tkc     does it still find them after a nap in the deep "
    "archive?\n"
    "\n"
    "passkey hides one number; lines hides several named ones and asks for one, which is harder and tells more. An answer counts "
    "when\n"
    "its first number is the hidden one, digit for digit. Depth 5 is near the beginning of the text, 95 near its end.";

json cell_json(const RecallCell& cell, const Engine& engine, const RecallRequest& request) {
  json value = {{"command", "recall"},
                {"model", engine.name()},
                {"task", cell.task},
                {"kv", cell.setting.kv},
                {"stock", cell.setting.stock},
                {"ctx", cell.ctx},
                {"depth", cell.depth},
                {"correct", cell.correct},
                {"total", cell.total},
                {"wrong", cell.wrong},
                {"seed", request.options.seed},
                {"haystack", request.haystack.empty() ? "generated" : request.haystack},
                {"keys", cell.task == "lines" ? std::max<size_t>(request.keys, request.depths.size()) : 1}};
  if (request.deep > 0.0 && !cell.setting.stock) value["deep"] = request.deep;
  return value;
}

void print(const std::vector<RecallCell>& cells, const RecallRequest& request) {
  for (const std::string& task : request.tasks) {
    std::vector<std::string> headers = {"<" + task, "ctx"};
    for (const double depth : request.depths) headers.push_back(format("%g%%", depth));
    headers.push_back("in all");
    Table table(headers);
    for (size_t i = 0; i < cells.size(); i += request.depths.size()) {
      if (cells[i].task != task) continue;
      std::vector<std::string> row = {cells[i].setting.label(), human_count(cells[i].ctx)};
      uint32_t correct = 0, total = 0;
      for (size_t d = 0; d < request.depths.size(); ++d) {
        const RecallCell& cell = cells[i + d];
        correct += cell.correct, total += cell.total;
        const std::string text = format("%u/%u", cell.correct, cell.total);
        row.push_back(cell.correct == cell.total ? green(text) : cell.correct == 0 ? red(text) : text);
      }
      row.push_back(bold(format("%u/%u", correct, total)));
      table.add(row);
    }
    std::printf("%s\n", table.str().c_str());
  }
}

void write_plot(const RecallRequest& request, const json& values) {
  Results results;
  for (const json& value : values) add_result(results, value, "recall");
  const std::string svg = recall_plot(results.recall);
  write_file(request.plot, [&](const Sink& sink) { sink(svg.data(), svg.size()); });
  const std::string png =
      (request.plot.ends_with(".svg") ? request.plot.substr(0, request.plot.size() - 4) : request.plot) + ".png";
  const bool also = convert_to_png(request.plot, png);
  if (!request.options.quiet) remark("wrote " + request.plot + (also ? " and " + png : "") + "\n");
}

void settle_request(RecallRequest& request) {
  Options& options = request.options;
  settle(options);
  check_writable(request.plot);
  if (options.kv.empty()) options.kv = {"fp16", "balanced"};
  for (const double depth : request.depths) {
    if (!(depth >= 0.0 && depth <= 100.0)) bad_input(format("--depths takes percentages from 0 to 100, not %g", depth));
  }
  std::sort(request.depths.begin(), request.depths.end());
  request.depths.erase(std::unique(request.depths.begin(), request.depths.end()), request.depths.end());
  if (request.depths.size() > 400) bad_input("--depths takes at most 400 depths");
  if (!request.haystack.empty()) (void)read_file(request.haystack);  // before a model is loaded
}

int run(RecallRequest& request) {
  settle_request(request);
  const std::vector<SettingSpec> specs = settle_settings({}, request.options.kv, request.stock);
  Engine engine = load_engine(request.options);
  (void)engine.shape();
  if (request.ctx.empty()) request.ctx = {std::min(2048u, engine.context()), std::min(4096u, engine.context())};
  std::sort(request.ctx.begin(), request.ctx.end());
  request.ctx.erase(std::unique(request.ctx.begin(), request.ctx.end()), request.ctx.end());
  for (const uint32_t ctx : request.ctx) engine.check_context(ctx);

  uint64_t total = 0;
  for (const std::string& task : request.tasks) {
    for (const uint32_t ctx : request.ctx) total += Recall::work(request, task, ctx) * specs.size();
  }
  Progress progress("recall", total, request.options.quiet);
  const Haystack haystack = make_haystack(request, engine, request.ctx.back());
  std::vector<RecallCell> cells;
  uint64_t done = 0;
  for (const SettingSpec& spec : specs) {
    Recall recall(engine, request, spec, request.ctx.back(), progress);
    for (const std::string& task : request.tasks) {
      for (const uint32_t ctx : request.ctx) {
        progress.label(format("%s, %s at %s", spec.label().c_str(), task.c_str(), human_count(ctx).c_str()));
        recall.starts_at(done);
        for (RecallCell& cell : task == "passkey" ? recall.passkey(ctx, haystack) : recall.lines(ctx, haystack))
          cells.push_back(std::move(cell));
        done += Recall::work(request, task, ctx);
      }
    }
  }
  progress.finish();

  json values = json::array();
  for (const RecallCell& cell : cells) values.push_back(cell_json(cell, engine, request));
  if (request.options.text()) print(cells, request);
  emit_json(request.options, values);
  if (!request.plot.empty()) write_plot(request, values);
  return 0;
}

}  // namespace

void add_recall(CLI::App& app, Action& action) {
  const auto [command, request] = add_command<RecallRequest>(
      app, action, "recall", "Hide numbers in long texts and count how many the model finds again", kFooter, run);
  command->add_option("--task", request->tasks, "passkey, lines or both, separated by a comma (default: both)")
      ->delimiter(',')
      ->check(CLI::IsMember({"passkey", "lines"}))
      ->type_name("TASKS");
  command->add_option("-c,--ctx", request->ctx, "lengths in tokens, separated by commas (default: 2048,4096)")
      ->delimiter(',')
      ->check(CLI::Range(64u, 1u << 24))
      ->type_name("N,...");
  command->add_option("--depths", request->depths, "where to hide, in percent of the length (default: 5,25,50,75,95)")
      ->delimiter(',')
      ->check(number_range(0.0, 100.0))
      ->type_name("P,...");
  command->add_option("--trials", request->trials, "different numbers at each depth")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  command->add_option("--keys", request->keys, "lines: numbers hidden at once (at least one for each depth)")
      ->check(CLI::Range(1u, 400u))
      ->capture_default_str();
  command->add_option("--haystack", request->haystack, "a text to hide in, repeated if it is short (default: generated)")
      ->type_name("FILE");
  command
      ->add_option(
          "--deep", request->deep,
          "park what was read in the deep archive at this ratio, and wake it, before asking (needs a calibration with its tables)")
      ->check(number_range(2.0, 1000.0))
      ->type_name("RATIO");
  command->add_option("--plot", request->plot, "write a heat map (SVG; a PNG beside it if rsvg-convert is installed)")
      ->type_name("FILE");
  add_learn_option(*command, request->learn);
  add_stock_option(*command, request->stock, "none");
  add_seed_option(*command, request->options);
  add_model_option(*command, request->options);
  add_kv_option(*command, request->options, "fp16 and balanced");
  add_output_options(*command, request->options);
}

}  // namespace tierkv::cli
