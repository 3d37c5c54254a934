// recall.cc — `tierkv recall`: does the model still find what it read? Exact match by greedy generation, over lengths and depths.
//
//   passkey  one number in a long text. The text before it is read once for all keys at that depth and all greater depths.
//   lines    as many named numbers as depths (or --keys); one reading serves the questions about every one of them.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "deep_eval.h"
#include "eval_common.h"
#include "number_range.h"
#include "recall_text.h"
#include "report_plots.h"
#include "terminal.h"

extern char** environ;

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

constexpr uint32_t kAnswerTokens = 12;
constexpr uint32_t kNewest = 512;  // tokens that --deep leaves as they are

struct Request {
  Options options;
  std::vector<std::string> stock, tasks = {"passkey", "lines"};
  std::vector<uint32_t> ctx;
  std::vector<double> depths = {5, 25, 50, 75, 95};
  uint32_t trials = 2, keys = 8, micro_batch = 256;
  double deep = 0.0;  // ratio; 0: as it is
  std::string haystack, plot;
};

struct Cell {
  std::string task;
  SettingSpec setting;
  uint32_t ctx = 0;
  double depth = 0.0;
  uint32_t correct = 0, total = 0;
  std::vector<std::string> wrong;  // what was said instead
};

// The tokens of a text, and the places where a sentence ends.
struct Haystack {
  Tokens tokens;
  std::vector<size_t> ends;

  // The end of a sentence nearest to a share of the first `length` tokens.
  size_t place(size_t length, double share) const {
    const size_t wanted = static_cast<size_t>(std::lround(share * static_cast<double>(length)));
    size_t best = wanted, distance = 64;  // without a sentence near by, the middle of one
    for (const size_t end : ends) {
      const size_t off = end > wanted ? end - wanted : wanted - end;
      if (end <= length && off < distance) best = end, distance = off;
    }
    return best;
  }
};

Haystack make_haystack(const Request& request, const Engine& engine, size_t length) {
  Haystack haystack;
  std::string text;
  if (request.haystack.empty()) {
    text = generate_prose(length + 64, request.options.seed);  // a word is a token or more
  } else {
    text = read_file(request.haystack);
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) bad_input(request.haystack + " has no text");
    if (text.size() > 16 * length) text.resize(16 * length);
  }
  const Tokens once = engine.tokenize(text, false);
  if (once.empty()) bad_input("the haystack has no tokens");
  while (haystack.tokens.size() < length) haystack.tokens.insert(haystack.tokens.end(), once.begin(), once.end());
  haystack.tokens.resize(length);
  for (size_t i = 0; i < length; ++i) {
    const std::string piece = engine.piece(haystack.tokens[i]);
    if (piece.find_first_of(".!?\n") != std::string::npos) haystack.ends.push_back(i + 1);
  }
  return haystack;
}

class Recall {
 public:
  Recall(Engine& engine, const Request& request, const SettingSpec& spec, uint32_t longest, Progress& progress)
      : engine_(engine),
        request_(request),
        spec_(spec),
        progress_(progress),
        session_(open_setting(engine, spec, longest, std::min(request.micro_batch, longest))) {}

  // Tokens that the progress bar has seen before.
  void starts_at(uint64_t base) { base_ = base, done_ = 0; }

  std::vector<Cell> passkey(uint32_t ctx, const Haystack& haystack) {
    std::mt19937 random(request_.options.seed + ctx);
    std::vector<Cell> cells;
    Tokens prefix = begin(kPasskeyIntroduction);
    const Needle sample = make_passkey(random);
    const size_t fixed = prefix.size() + tokens(sample.text).size() + tokens(sample.question).size() + kAnswerTokens + 8;
    const size_t length = room(ctx, fixed);
    session_->reset();
    feed(prefix, Want::none);
    size_t read = 0;
    for (const double depth : request_.depths) {
      Cell cell = empty_cell("passkey", ctx, depth);
      const size_t place = std::max(read, haystack.place(length, depth / 100.0));
      const Tokens before(haystack.tokens.begin() + static_cast<ptrdiff_t>(read),
                          haystack.tokens.begin() + static_cast<ptrdiff_t>(place));
      const Tokens after(haystack.tokens.begin() + static_cast<ptrdiff_t>(place),
                         haystack.tokens.begin() + static_cast<ptrdiff_t>(length));
      feed(before, Want::none);
      prefix.insert(prefix.end(), before.begin(), before.end());
      read = place;
      Checkpoint checkpoint(engine_, *session_, prefix);
      for (uint32_t trial = 0; trial < request_.trials; ++trial) {
        const Needle needle = make_passkey(random);
        Tokens rest = tokens(needle.text);
        rest.insert(rest.end(), after.begin(), after.end());
        if (trial != 0) checkpoint.restore();
        feed(rest, Want::none);
        nap();
        feed(tokens(needle.question), Want::last);
        judge(cell, needle);
      }
      checkpoint.restore_last();
      cells.push_back(std::move(cell));
    }
    return cells;
  }

  std::vector<Cell> lines(uint32_t ctx, const Haystack& haystack) {
    std::mt19937 random(request_.options.seed + ctx + 1);
    std::vector<Cell> cells;
    for (const double depth : request_.depths) cells.push_back(empty_cell("lines", ctx, depth));
    for (uint32_t trial = 0; trial < request_.trials; ++trial) lines_trial(ctx, haystack, random, cells);
    return cells;
  }

  // Tokens that will be fed, for the progress bar.
  static uint64_t work(const Request& request, const std::string& task, uint32_t ctx) {
    if (task == "lines") return static_cast<uint64_t>(ctx) * request.trials;
    double total = request.depths.back() / 100.0;
    for (const double depth : request.depths) total += request.trials * (1.0 - depth / 100.0);
    return static_cast<uint64_t>(total * ctx);
  }

 private:
  void lines_trial(uint32_t ctx, const Haystack& haystack, std::mt19937& random, std::vector<Cell>& cells) {
    // The needles that are asked for, at their depths, and others spread evenly between them.
    std::vector<double> depths = request_.depths;
    const size_t others = request_.keys > depths.size() ? request_.keys - depths.size() : 0;
    for (size_t i = 0; i < others; ++i) depths.push_back(100.0 * (static_cast<double>(i) + 0.5) / static_cast<double>(others));
    const std::vector<Needle> needles = make_lines(depths.size(), random);
    std::vector<size_t> order(depths.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return depths[a] < depths[b]; });

    Tokens text = begin(kLinesIntroduction);
    size_t fixed = text.size() + kAnswerTokens + 8, question = 0;
    for (const Needle& needle : needles) {
      fixed += tokens(needle.text).size();
      question = std::max(question, tokens(needle.question).size());
    }
    const size_t length = room(ctx, fixed + question);
    size_t read = 0;
    for (const size_t i : order) {
      const size_t place = std::max(read, haystack.place(length, depths[i] / 100.0));
      text.insert(text.end(), haystack.tokens.begin() + static_cast<ptrdiff_t>(read),
                  haystack.tokens.begin() + static_cast<ptrdiff_t>(place));
      append(text, tokens(needles[i].text));
      read = place;
    }
    text.insert(text.end(), haystack.tokens.begin() + static_cast<ptrdiff_t>(read),
                haystack.tokens.begin() + static_cast<ptrdiff_t>(length));
    session_->reset();
    feed(text, Want::none);
    nap();
    Checkpoint checkpoint(engine_, *session_, text);
    for (size_t i = 0; i < cells.size(); ++i) {
      if (i != 0) checkpoint.restore();
      session_->feed(tokens(needles[i].question), Want::last);
      judge(cells[i], needles[i]);
    }
  }

  Cell empty_cell(const char* task, uint32_t ctx, double depth) const { return {task, spec_, ctx, depth, 0, 0, {}}; }
  Tokens tokens(const std::string& text) const { return engine_.tokenize(text, false); }
  static void append(Tokens& to, const Tokens& more) { to.insert(to.end(), more.begin(), more.end()); }

  Tokens begin(const char* introduction) const {
    Tokens result;
    if (const llama_token first = first_token(engine_); first != LLAMA_TOKEN_NULL) result.push_back(first);
    append(result, tokens(introduction));
    return result;
  }

  static size_t room(uint32_t ctx, size_t fixed) {
    if (fixed + 16 > ctx)
      bad_input(format("a context of %u tokens has no room for a haystack: the rest alone takes %zu", ctx, fixed));
    return ctx - fixed;
  }

  void feed(const Tokens& tokens, Want want) {
    const uint64_t before = done_;
    session_->feed(tokens, want, {}, 0, [&](uint32_t done) { progress_.update(base_ + before + done); });
    done_ += tokens.size();
  }

  // With --deep, what was read goes through the deep archive before it is asked about.
  void nap() {
    if (request_.deep > 0.0 && session_->cache() != nullptr)
      (void)park_and_wake(*session_->cache(), session_->sequence(), request_.deep, kNewest);
  }

  void judge(Cell& cell, const Needle& needle) {
    std::string said;
    for (uint32_t i = 0; i < kAnswerTokens && session_->length() < session_->limit(); ++i) {
      const auto logits = session_->last_logits();
      const llama_token token = static_cast<llama_token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      if (engine_.is_end(token)) break;
      said += engine_.piece(token);
      const size_t digit = said.find_first_of("0123456789");
      if (digit != std::string::npos && said.find_first_not_of("0123456789", digit) != std::string::npos) break;
      session_->feed(std::span(&token, 1), Want::last);
    }
    ++cell.total;
    if (answers(said, needle.answer)) {
      ++cell.correct;
    } else {
      cell.wrong.push_back(said + " for " + needle.answer);
    }
  }

  Engine& engine_;
  const Request& request_;
  const SettingSpec& spec_;
  Progress& progress_;
  std::unique_ptr<Session> session_;
  uint64_t base_ = 0, done_ = 0;
};

json cell_json(const Cell& cell, const Engine& engine, const Request& request) {
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

void print(const std::vector<Cell>& cells, const Request& request) {
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
        const Cell& cell = cells[i + d];
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

// A PNG beside the SVG where rsvg-convert is installed; nothing otherwise.
bool convert_to_png(const std::string& svg, const std::string& png) {
  const char* const words[] = {"rsvg-convert", "--zoom=2", "--output", png.c_str(), svg.c_str(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int problem = posix_spawnp(&child, words[0], &actions, nullptr, const_cast<char* const*>(words), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  if (problem != 0) return false;
  if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 127) unlink(png.c_str());  // half a picture; 127: there is no such program
  return false;
}

void write_plot(const Request& request, const json& values) {
  Results results;
  for (const json& value : values) add_result(results, value, "recall");
  const std::string svg = recall_plot(results.recall);
  write_file(request.plot, [&](const Sink& sink) { sink(svg.data(), svg.size()); });
  const std::string png =
      (request.plot.ends_with(".svg") ? request.plot.substr(0, request.plot.size() - 4) : request.plot) + ".png";
  const bool also = convert_to_png(request.plot, png);
  if (!request.options.quiet) remark("wrote " + request.plot + (also ? " and " + png : "") + "\n");
}

void settle_request(Request& request) {
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

int run(Request& request) {
  settle_request(request);
  const std::vector<SettingSpec> specs = settle_settings({}, request.options.kv, request.stock);
  Engine engine(request.options);
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
  std::vector<Cell> cells;
  uint64_t done = 0;
  for (const SettingSpec& spec : specs) {
    Recall recall(engine, request, spec, request.ctx.back(), progress);
    for (const std::string& task : request.tasks) {
      for (const uint32_t ctx : request.ctx) {
        progress.label(format("%s, %s at %s", spec.label().c_str(), task.c_str(), human_count(ctx).c_str()));
        recall.starts_at(done);
        for (Cell& cell : task == "passkey" ? recall.passkey(ctx, haystack) : recall.lines(ctx, haystack))
          cells.push_back(std::move(cell));
        done += Recall::work(request, task, ctx);
      }
    }
  }
  progress.finish();

  json values = json::array();
  for (const Cell& cell : cells) values.push_back(cell_json(cell, engine, request));
  if (request.options.text()) print(cells, request);
  emit_json(request.options, values);
  if (!request.plot.empty()) write_plot(request, values);
  return 0;
}

}  // namespace

void add_recall(CLI::App& app, Action& action) {
  const auto [command, request] = add_command<Request>(
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
  add_stock_option(*command, request->stock, "none");
  add_seed_option(*command, request->options);
  add_model_option(*command, request->options);
  add_kv_option(*command, request->options, "fp16 and balanced");
  add_output_options(*command, request->options);
}

}  // namespace tierkv::cli
