// commands.h — one function a command: it adds the command to the program and says what to run when it is chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <utility>

#include "config_file.h"
#include "exit_codes.h"
#include "files.h"
#include "interrupt.h"
#include "options.h"
#include "output.h"

namespace tierkv::cli {

// What the chosen command does; its result is the exit code.
using Action = std::function<int()>;

// A command whose options fill a request that `run` then takes.
template <class Request>
std::pair<CLI::App*, std::shared_ptr<Request>> add_command(CLI::App& app, Action& action, const char* name, const char* about,
                                                           const char* footer, int (*run)(Request&)) {
  CLI::App* command = app.add_subcommand(name, about);
  auto request = std::make_shared<Request>();
  command->footer(footer);
  command->callback([request, &action, run] { action = [request, run] { return run(*request); }; });
  return {command, request};
}

void add_generate(CLI::App& app, Action& action);
void add_chat(CLI::App& app, Action& action);
void add_demo(CLI::App& app, Action& action);
void add_serve(CLI::App& app, Action& action, const ConfigOrigins& origins);
void add_plan(CLI::App& app, Action& action);
void add_ppl(CLI::App& app, Action& action);
void add_recall(CLI::App& app, Action& action);
void add_calibrate(CLI::App& app, Action& action);
void add_models(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_report(CLI::App& app, Action& action);
void add_snapshot(CLI::App& app, Action& action);
void add_fetch(CLI::App& app, Action& action);
void add_config(CLI::App& app, Action& action, const ConfigOptions& config);
void add_man(CLI::App& app, Action& action);
void add_completion(CLI::App& app, Action& action);

}  // namespace tierkv::cli
