// commands.h — one function a command: it adds the command to the program and says what to run when it is chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "common.h"

namespace tierkv::cli {

// What the chosen command does; its result is the exit code.
using Action = std::function<int()>;

void add_generate(CLI::App& app, Action& action);
void add_chat(CLI::App& app, Action& action);
void add_demo(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_ppl(CLI::App& app, Action& action);
void add_recall(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_report(CLI::App& app, Action& action);
void add_snapshot(CLI::App& app, Action& action);
void add_fetch(CLI::App& app, Action& action);
void add_completion(CLI::App& app, Action& action);

}  // namespace tierkv::cli
