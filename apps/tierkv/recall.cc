// recall.cc — `tierkv recall`: does the model still find what it read? Over kinds of text, lengths and depths (recall_plan.h says
// what is read, recall_run.h asks, recall_output.h shows).
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "compare.h"
#include "engine/files.h"
#include "load_engine.h"
#include "number_range.h"
#include "recall_kinds.h"
#include "recall_output.h"
#include "report_page.h"
#include "run_record.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

using nlohmann::json;

constexpr const char* kFooter =
    "Examples:\n"
    "  tierkv recall --kv balanced --text all --ctx 4096 --stock q8_0,q4_0 --json recall.json\n"
    "  tierkv recall --kv fp16 --kv balanced --ctx 2048,4096 --plot recall.html\n"
    "  tierkv recall --task passkey --text all --ctx 4096 --compare balanced,archive=klt1+top4     eviction at the same bytes\n"
    "  tierkv recall --task lines --keys 16 --kv compact --stock q4_0 --json recall.json\n"
    "  tierkv recall --haystack book.txt --haystack program.cc --ctx 8192 --depths 5,25,50,75,95 --trials 4\n"
    "  tierkv recall --deep 32 --kv fp16,sinks=4,calibration=deep.tkc     does it still find them after a nap in the deep "
    "archive?\n"
    "\n"
    "passkey hides one number; quote hides a sentence that must be copied word for word, in the same text; lines hides several\n"
    "named numbers and asks for one, which is harder. Every trial reads a stretch of its own. FP16 is always asked too. A number\n"
    "counts when the model says it with nothing but digits to choose from: so a cache is not blamed for a change of words. How\n"
    "often the free answer changed is said beside it. Depth 5 is near the beginning of the text, 95 near its end. When a setting\n"
    "leaves blocks unread in decoding (skip, spill=top:N), all settings get questions and answers token by token, as in decoding,\n"
    "because prompts read everything. With --question prompt they get the answers so, and questions as prompts.";

void write_plot(const RecallRequest& request, const json& values) {
  Results results;
  for (const json& value : values) add_result(results, value, "recall");
  const std::string page = make_page(results, this_run(), chart_library());
  write_file(request.plot, [&](const Sink& sink) { sink(page.data(), page.size()); });
  if (!request.options.quiet) remark("wrote " + request.plot + "\n");
}

// Each once, where it stood first.
void keep_first(std::vector<std::string>& values) {
  std::vector<std::string> kept;
  for (std::string& value : values) {
    if (std::find(kept.begin(), kept.end(), value) == kept.end()) kept.push_back(std::move(value));
  }
  values = std::move(kept);
}

void settle_request(RecallRequest& request) {
  Options& options = request.options;
  settle(options);
  check_writable(request.plot);
  if (options.kv.empty() && request.compare.empty()) options.kv = {"balanced"};
  if (!request.compare.empty()) {
    check_kv({request.compare});
    if (request.ctx.size() != 1) bad_input("--compare needs one length (--ctx N): bytes are equal at the end of it");
  }
  std::vector<std::string>& kinds = request.kinds;
  if (std::find(kinds.begin(), kinds.end(), "all") != kinds.end()) kinds = text_kinds();
  if (kinds.empty() && request.haystacks.empty()) kinds = {"prose"};
  keep_first(kinds);
  keep_first(request.haystacks);
  keep_first(request.tasks);
  for (const double depth : request.depths) {
    if (!(depth >= 0.0 && depth <= 100.0)) bad_input(format("--depths takes percentages from 0 to 100, not %g", depth));
  }
  std::sort(request.depths.begin(), request.depths.end());
  request.depths.erase(std::unique(request.depths.begin(), request.depths.end()), request.depths.end());
  if (request.depths.size() > 400) bad_input("--depths takes at most 400 depths");
}

// Settings in the order of the first of their kind: those that read alike are together, and the first of them reads for all. What a
// cache learns in passing, or makes of a text that is parked, is its own affair.
std::vector<std::vector<size_t>> readers(const RecallRequest& request, const std::vector<SettingSpec>& specs) {
  std::vector<std::vector<size_t>> all;
  for (size_t s = 0; s < specs.size(); ++s) {
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const auto& alike) { return reads_alike(specs[alike[0]], specs[s]); });
    if (found == all.end() || request.learn || request.deep > 0.0) all.push_back({s});
    else found->push_back(s);
  }
  return all;
}

int run(RecallRequest& request) {
  settle_request(request);
  std::vector<SettingSpec> specs = settle_settings({{"fp16", false}}, request.options.kv, request.stock);
  const std::vector<TextSource> sources = text_sources(request);  // before a model is loaded
  Engine engine = load_engine(request.options);
  (void)engine.shape();
  if (request.ctx.empty()) request.ctx = {std::min(2048u, engine.context()), std::min(4096u, engine.context())};
  std::sort(request.ctx.begin(), request.ctx.end());
  request.ctx.erase(std::unique(request.ctx.begin(), request.ctx.end()), request.ctx.end());
  for (const uint32_t ctx : request.ctx) engine.check_context(ctx);

  std::vector<Compared> rivals;
  if (!request.compare.empty()) {
    rivals = rivals_of(engine, request.compare, request.ctx[0], request.micro_batch, request.options.quiet);
    std::vector<SettingSpec> compared;
    for (const Compared& rival : rivals) compared.push_back(rival.spec);
    specs.insert(specs.begin() + 1, compared.begin(), compared.end());
  }
  request.by_token = std::any_of(specs.begin(), specs.end(), chooses_blocks);
  const std::vector<Reading> readings = plan_readings(request, sources, engine.tokenizer());
  const DigitMask mask(engine.tokenizer());
  uint64_t total = 0, done = 0;
  for (const Reading& reading : readings) total += reading.text.size() * specs.size();
  Progress progress("recall", total, request.options.quiet);
  std::vector<std::vector<std::vector<RecallAnswer>>> answers(specs.size());
  for (const std::vector<size_t>& alike : readers(request, specs)) {
    std::vector<std::unique_ptr<Recall>> recalls;
    for (const size_t s : alike) recalls.push_back(std::make_unique<Recall>(engine, request, specs[s], request.ctx.back(), mask));
    for (const Reading& reading : readings) {
      for (size_t i = 0; i < alike.size(); ++i) {
        const std::string label = specs[alike[i]].label();
        progress.label(format("%s, %s at %s", label.c_str(), reading.kind.c_str(), human_count(reading.ctx).c_str()));
        answers[alike[i]].push_back(i == 0 ? recalls[0]->read(reading, progress, done, alike.size() > 1)
                                           : recalls[i]->take_over(reading, recalls[0]->kept()));
        done += reading.text.size();
        progress.update(done);
      }
    }
  }
  progress.finish();

  const std::vector<RecallCell> cells = cells_of(specs, readings, answers);
  json values = json::array();
  for (const RecallCell& cell : cells) values.push_back(cell_json(cell, engine, request));
  add_compared(values, rivals);
  if (request.options.text()) {
    print_recall(cells, request);
    if (!rivals.empty()) print_rivals(rivals);
  }
  emit_results(request.options, values);
  if (!request.plot.empty()) write_plot(request, values);
  return 0;
}

}  // namespace

void add_recall(CLI::App& app, Action& action) {
  const auto [command, request] = add_command<RecallRequest>(
      app, action, "recall", "Hide numbers and sentences in long texts and count how many the model finds again", kFooter, run);
  command->add_option("--task", request->tasks, "passkey, quote, lines, separated by commas (default: passkey,quote)")
      ->delimiter(',')
      ->check(CLI::IsMember({"passkey", "quote", "lines"}))
      ->type_name("TASKS");
  command->add_option("-c,--ctx", request->ctx, "lengths in tokens, separated by commas (default: 2048,4096)")
      ->delimiter(',')
      ->check(CLI::Range(64u, 1u << 24))
      ->type_name("N,...");
  command
      ->add_option("--question", request->question,
                   "how questions are fed where a setting leaves blocks unread in decoding: token by token, or as a prompt, which "
                   "reads everything")
      ->check(CLI::IsMember({"token", "prompt"}))
      ->type_name("HOW")
      ->capture_default_str();
  command->add_option("--depths", request->depths, "where to hide, in percent of the length (default: 5,25,50,75,95)")
      ->delimiter(',')
      ->check(number_range(0.0, 100.0))
      ->type_name("P,...");
  command->add_option("--trials", request->trials, "times that each depth is asked for, each in another stretch of the text")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  command->add_option("--keys", request->keys, "lines: numbers hidden at once (at least one for each depth)")
      ->check(CLI::Range(1u, 400u))
      ->capture_default_str();
  command->add_option("--quotes", request->quotes, "quote: sentences hidden in one text")
      ->check(CLI::Range(1u, 5u))
      ->capture_default_str();
  std::vector<std::string> kinds = text_kinds();
  kinds.push_back("all");
  command
      ->add_option("--text", request->kinds,
                   "generated texts to hide in: prose, code, dialogue, dictionary, table, separated by commas, or all (default: "
                   "prose, unless there is a --haystack)")
      ->delimiter(',')
      ->check(CLI::IsMember(kinds))
      ->type_name("KINDS");
  command->add_option("--haystack", request->haystacks, "a file to hide in; a short one is repeated. May be given several times")
      ->type_name("FILE")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      ->add_option(
          "--deep", request->deep,
          "park what was read in the deep archive at this ratio, and wake it, before asking (needs a calibration with its tables)")
      ->check(number_range(2.0, 1000.0))
      ->type_name("RATIO");
  command->add_option("--plot", request->plot, "write a page with a map of what was found (HTML, as `tierkv report` does)")
      ->type_name("FILE");
  add_compare_option(*command, request->compare);
  add_learn_option(*command, request->learn);
  add_stock_option(*command, request->stock, "none");
  add_seed_option(*command, request->options);
  add_model_option(*command, request->options);
  add_kv_option(*command, request->options, "balanced");
  add_output_options(*command, request->options);
}

}  // namespace tierkv::cli
