// config_file.h — defaults from a file, $XDG_CONFIG_HOME/tierkv/config.toml, or the one that --config names.
//
//   model = "smollm2"            # for every command
//   threads = 4
//   kv = "balanced"              # for chat, generate, serve and snapshot save
//   [chat]                       # any long option of a command, by its name
//   temp = 0.5
//   system = "You answer in one sentence."
//
// What stands on the command line wins over a command's table, and that over the top of the file. A file that is not there is
// none, unless --config named it.
//
// Errors:  Error, bad_input, as FILE:LINE: what is wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

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

// Adds --config and --no-config to a command and to those below it.
void add_config_options(CLI::App& app, ConfigOptions& options);
// Reads the file that is meant. Every entry names an option that exists.
ConfigFile read_config(const ConfigOptions& options, const CLI::App& app);
// Sets what the command line left open in the command that was chosen.
void apply_config(const ConfigFile& config, CLI::App& app);
// Sets every entry in its command and so finds values that cannot be. REQUIRES: no command is run afterwards that has options of
// its own.
void check_config(const ConfigFile& config, CLI::App& app);

}  // namespace tierkv::cli
