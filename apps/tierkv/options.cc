// options.cc — options shared by commands, and what can be refused before any work.
#include "options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "output.h"
#include "tierkv/config.h"

namespace tierkv::cli {

void add_output_options(CLI::App& app, Options& options) {
  app.add_option_function<std::vector<std::string>>(
         "--json",
         [&options](const std::vector<std::string>& values) {
           options.json = true;
           if (!values.empty() && values.front() != "{}") options.json_file = values.front();
         },
         "JSON on stdout instead of text; with FILE, JSON there and text here")
      ->expected(0, 1)
      ->type_name("[FILE]")
      ->trigger_on_parse();
  app.add_flag("-q,--quiet", options.quiet, "no progress bars and no remarks");
}

void add_model_option(CLI::App& app, Options& options) {
  app.add_option("-m,--model", options.model, "a GGUF file, or a known name: smollm2, gemma3-270m")
      ->type_name("MODEL")
      ->capture_default_str();
  app.add_option("-t,--threads", options.threads,
                 "threads to compute with (default: all cores, fewer for a token while the machine has other work)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  add_rope_options(app, options.rope);
}

void add_kv_option(CLI::App& app, Options& options, const std::string& fallback, bool compares) {
  std::string presets;
  for (const std::string& name : preset_names()) presets += (presets.empty() ? "" : ", ") + name;
  app.add_option("--kv", options.kv,
                 "how keys and values are kept: a preset (" + presets +
                     "), a .toml or .json file, or one line such as "
                     "hot=64,warm=448,archive=rot2" +
                     (compares ? "; may be repeated to compare" : "") + " (default: " + fallback + ")")
      ->type_name("SPEC")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_seed_option(CLI::App& app, Options& options) {
  app.add_option("-s,--seed", options.seed, "seed of everything random")->type_name("N")->capture_default_str();
}

void settle(Options& options) {
  if (options.threads == 0) {
    options.threads_by_machine = true;
    options.threads = std::max(1u, std::thread::hardware_concurrency());
  }
  if (options.json_only()) expect_json_on_stdout();
  else check_writable(options.json_file);
}

void check_writable(const std::string& path) {
  if (path.empty()) return;
  const std::filesystem::path file(path);
  const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) bad_input("cannot write " + path + ": it is a folder");
  if (std::filesystem::is_other(file, ignored)) bad_input("cannot write " + path + ": it is not a regular file");
  if (!std::filesystem::is_directory(folder, ignored)) bad_input("cannot write " + path + ": there is no folder " + folder);
  if (access(folder.c_str(), W_OK) != 0) bad_input("cannot write " + path + ": " + std::strerror(errno));
}

void settle_json(Options& options, std::string& positional) {
  if (!positional.empty() || options.json_file.empty()) return;
  positional = std::exchange(options.json_file, "");
}

void check_kv(const std::vector<std::string>& specs) {
  for (const std::string& spec : specs) {
    CacheConfig config;
    check(apply_spec(spec, config), "--kv " + spec);
  }
}

}  // namespace tierkv::cli
