// config_file.h — defaults from a file, $XDG_CONFIG_HOME/tierkv/config.toml, or the one that --config names.
//
//   model = "smollm2"            # for every command
//   threads = 4
//   rope-scale = 4               # and the other options of RoPE
//   kv = "balanced"              # for chat, generate, serve and snapshot save
//   [chat]                       # any long option of a command, by its name
//   temp = 0.5
//   system = "You answer in one sentence."
//
// What stands on the command line wins over the environment (of `tierkv serve`), that over a command's table, and that over the top
// of the file. A file that is not there is none, unless --config named it.
//
// The environment: TIERKV_SERVE_PORT=8081 is --port 8081 of `tierkv serve`. A variable is named after the long option, in capitals,
// with _ for -; a list has commas.
//
// Errors:  Error, bad_input, as FILE:LINE: what is wrong, or with the name of the variable.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tierkv::cli {

struct ConfigEntry {
  std::string command;  // "chat", "snapshot save"; empty: every command
  std::string name;     // of the long option, without dashes
  std::vector<std::string> values;
  uint32_t line = 0;
};

struct ConfigFile {
  std::string path;  // where it is looked for; empty: nowhere
  bool there = false;
  std::vector<ConfigEntry> entries;
};

struct ConfigOptions {
  std::string file;   // --config
  bool none = false;  // --no-config
};

// What set an option that the command line left open, by the option's long name.
struct ConfigOrigin {
  std::vector<std::string> values;
  std::string from;  // "config.toml:12", "TIERKV_SERVE_PORT"
};
using ConfigOrigins = std::map<std::string, ConfigOrigin>;

// Adds --config and --no-config to a command and to those below it.
void add_config_options(CLI::App& app, ConfigOptions& options);
// Reads the file that is meant. Every entry names an option that exists.
ConfigFile read_config(const ConfigOptions& options, const CLI::App& app);
// Sets what the command line left open in the command that was chosen.
void apply_config(const ConfigFile& config, CLI::App& app, ConfigOrigins& origins);
// The same from the environment, for `tierkv serve`; to be called after it. A variable that names no option is refused.
void apply_environment(CLI::App& app, ConfigOrigins& origins);
// An option of a command that may be set so: by its long name, and not what asks for help or for another file. Null: there is none.
CLI::Option* find_option(const CLI::App& app, const std::string& name);
// TIERKV_SERVE_KV_BUDGET of kv-budget.
std::string variable_of(const std::string& option);
// Sets every entry in its command and so finds values that cannot be. REQUIRES: no command is run afterwards that has options of
// its own.
void check_config(const ConfigFile& config, CLI::App& app);

}  // namespace tierkv::cli
