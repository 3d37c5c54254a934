// main.cc — tierkv: the command. Every command is a file of its own; this one parses, runs, and turns failures into exit codes.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string_view>

#include "brief_waits.h"
#include "commands.h"
#include "habits.h"
#include "help.h"

namespace tierkv::cli {

namespace {

constexpr const char* kAbout = "tierkv: language models with a tiered, compressed KV cache, on unmodified libllama.\n";

constexpr const char* kFooter =
    "Examples:\n"
    "  tierkv fetch smollm2                       download the default model (98 MB)\n"
    "  tierkv demo                                read a story in a fraction of the memory\n"
    "  tierkv chat --kv balanced                  talk; /tiers shows the cache\n"
    "  tierkv generate -f notes.txt -n 200        continue a text\n"
    "  tierkv serve --parallel 8                  an OpenAI-compatible server at localhost:8080\n"
    "  tierkv plan -m model.gguf --ctx 32768      what a cache would take\n"
    "  tierkv ppl --kv balanced --stock q4_0      what a cache costs in quality\n"
    "\n"
    "Defaults (model, threads, kv, any option of a command) may stand in tierkv/config.toml of the XDG config folder: see tierkv\n"
    "config --help. Tokens may be counted in k: --ctx 32k is 32,768.\n"
    "Exit codes: 0 done, 1 something failed, 2 bad input or usage, 130 interrupted.\n"
    "Colours respect NO_COLOR; models and texts are kept in $TIERKV_CACHE (default: tierkv/ in the XDG cache).";

int run(int argc, char** argv) {
  CLI::App app(kAbout, "tierkv");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("tierkv ") + TIERKV_VERSION, "the version");
  app.require_subcommand(1);
  auto formatter = std::make_shared<HelpFormatter>();
  app.formatter(formatter);
  app.set_help_flag("-h,--help", "this text");
  Action action;
  add_demo(app, action);
  add_chat(app, action);
  add_generate(app, action);
  ConfigOrigins origins;
  add_serve(app, action, origins);
  add_plan(app, action);
  add_ppl(app, action);
  add_recall(app, action);
  add_calibrate(app, action);
  add_models(app, action);
  add_bench(app, action);
  add_report(app, action);
  add_snapshot(app, action);
  add_fetch(app, action);
  ConfigOptions config;
  add_config(app, action, config);
  add_completion(app, action);
  add_man(app, action);
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) command->group("Commands");
  take_thousands(app);
  add_config_options(app, config);
  // Without a file after it, --json means stdout, also for what is refused before a command sees it.
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--json" && (i + 1 == argc || argv[i + 1][0] == '-')) expect_json_on_stdout();
  }
  try {
    std::vector<std::string> words = translated({argv + 1, argv + argc});
    std::reverse(words.begin(), words.end());  // as CLI11 takes them
    app.parse(words);
  } catch (const CLI::Success& wanted) {  // --help, --version
    return app.exit(wanted);
  } catch (const CLI::ParseError& problem) {
    std::string sentence = problem.what();
    std::replace(sentence.begin(), sentence.end(), '\n', ' ');
    if (app.get_subcommands().empty()) {
      const std::vector<std::string> rest = app.remaining();
      sentence = rest.empty() ? "a command is missing" : "there is no command " + rest.front();
    }
    std::string command = "tierkv";
    for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
      at = at->get_subcommands().front();
      command += " " + at->get_name();
    }
    sentence += " (see " + command + " --help)";
    bad_input(sentence);
  }
  if (!app.got_subcommand("config")) {
    apply_config(read_config(config, app), app, origins);
    apply_environment(app, origins);
  }
  install_interrupt_handler();
  const int code = action ? action() : kBadInput;
  if (code != 0) emit_failure(code, code == kInterrupted ? "interrupted" : "failed: stderr says why");
  return code;
}

int end_with(int exit_code, const char* sentence) {
  emit_failure(exit_code, sentence);
  std::fflush(stdout);
  std::fprintf(stderr, "tierkv: %s\n", sentence);
  return exit_code;
}

}  // namespace
}  // namespace tierkv::cli

int main(int argc, char** argv) {
  using namespace tierkv::cli;
  wait_briefly_beside_others(argv);
  try {
    const int code = run(argc, argv);
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
      std::fputs("tierkv: cannot write to stdout\n", stderr);
      return kRuntimeError;
    }
    return code;
  } catch (const Error& failure) {
    return end_with(exit_code(failure), failure.what());
  } catch (const std::exception& problem) {
    return end_with(kRuntimeError, problem.what());
  }
}
