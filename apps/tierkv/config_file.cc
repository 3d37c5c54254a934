#include "config_file.h"

#include <toml++/toml.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>

#include "files.h"

namespace tierkv::cli {

CLI::Option* find_option(const CLI::App& app, const std::string& name) {
  static const std::set<std::string> asks = {"help", "version", "config", "no-config", "json", "check", "print-config"};
  if (asks.contains(name)) return nullptr;
  for (const CLI::Option* option : app.get_options()) {
    if (option->check_lname(name)) return const_cast<CLI::Option*>(option);
  }
  return nullptr;
}

namespace {

// Options of the top of the file. kv is for the commands that work with one setting: the others compare several.
constexpr const char* kEverywhere[] = {"model",
                                       "threads",
                                       "kv",
                                       "rope-scaling",
                                       "rope-scale",
                                       "rope-freq-base",
                                       "rope-freq-scale",
                                       "yarn-orig-ctx",
                                       "yarn-ext-factor",
                                       "yarn-attn-factor",
                                       "yarn-beta-slow",
                                       "yarn-beta-fast"};
const std::string kVariables = "TIERKV_SERVE_";
constexpr const char* kOneSetting[] = {"chat", "generate", "serve", "snapshot save"};

std::string home_path(const char* variable, const char* below_home, const char* file) {
  const char* set = std::getenv(variable);
  if (set != nullptr && *set == '/') return std::string(set) + file;
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? std::string(home) + below_home + file : "";
}

[[noreturn]] void refuse(const std::string& path, uint32_t line, const std::string& what) {
  bad_input(path + ":" + std::to_string(line) + ": " + what);
}

std::string text_of(const toml::node& node, const std::string& path) {
  if (const auto* text = node.as_string()) {
    const char* home = std::getenv("HOME");
    return text->get().starts_with("~/") && home != nullptr ? home + text->get().substr(1) : text->get();
  }
  std::ostringstream out;
  if (const auto* flag = node.as_boolean()) out << (flag->get() ? "true" : "false");
  else if (const auto* whole = node.as_integer()) out << whole->get();
  else if (const auto* real = node.as_floating_point()) out << real->get();
  else refuse(path, node.source().begin.line, "an option takes a text, a number, true, false, or a list of those");
  return out.str();
}

std::string known_options(const CLI::App& app) {
  std::string names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (find_option(app, name) != nullptr) names += (names.empty() ? "" : ", ") + name;
    }
  }
  return names;
}

class Reader {
 public:
  explicit Reader(ConfigFile& config) : config_(config) {}

  void top(const toml::table& table, const CLI::App& app) {
    for (const auto& [key, node] : table) {
      const std::string name(key.str());
      if (const auto* part = node.as_table()) {
        command(*part, app, name, name, key.source().begin.line);
        continue;
      }
      if (std::find(std::begin(kEverywhere), std::end(kEverywhere), name) == std::end(kEverywhere))
        refuse(config_.path, key.source().begin.line,
               "there is no option " + name +
                   " for every command: model, threads, kv, those of RoPE (rope-..., yarn-...), or a [command]");
      add("", name, node, key.source().begin.line);
    }
  }

 private:
  void command(const toml::table& table, const CLI::App& parent, const std::string& name, const std::string& full, uint32_t line) {
    const auto found = parent.get_subcommands([&](const CLI::App* one) { return one->get_name() == name; });
    const CLI::App* app = found.empty() ? nullptr : found.front();
    if (app == nullptr) refuse(config_.path, line, "there is no command " + full);
    for (const auto& [key, node] : table) {
      const std::string option(key.str());
      const uint32_t at = key.source().begin.line;
      if (const auto* part = node.as_table()) command(*part, *app, option, full + " " + option, at);
      else if (find_option(*app, option) == nullptr)
        refuse(config_.path, at, "tierkv " + full + " has no option " + option + ": " + known_options(*app));
      else add(full, option, node, at);
    }
  }

  void add(const std::string& command, const std::string& name, const toml::node& node, uint32_t line) {
    ConfigEntry entry{command, name, {}, line};
    if (const auto* list = node.as_array()) {
      for (const toml::node& one : *list) entry.values.push_back(text_of(one, config_.path));
    } else {
      entry.values.push_back(text_of(node, config_.path));
    }
    config_.entries.push_back(entry);
  }

  ConfigFile& config_;
};

// `from` says where the values stand.
void set(const std::string& from, const std::vector<std::string>& values, CLI::Option& option) {
  try {
    for (const std::string& value : values) option.add_result(value);
    if (!values.empty()) option.run_callback();
  } catch (const CLI::ParseError& problem) {
    std::string sentence = problem.what();
    std::replace(sentence.begin(), sentence.end(), '\n', ' ');
    bad_input(from + ": " + sentence);
  }
  option.clear();  // the value stays; the option counts as not given
}

bool concerns(const ConfigEntry& entry, const std::string& command) {
  if (!entry.command.empty()) return entry.command == command;
  return entry.name != "kv" || std::find(std::begin(kOneSetting), std::end(kOneSetting), command) != std::end(kOneSetting);
}

void apply_to(const ConfigFile& config, CLI::App& app, const std::string& command, ConfigOrigins& origins) {
  // The top of the file first: a command's own table is more to the point.
  for (const bool own : {false, true}) {
    for (const ConfigEntry& entry : config.entries) {
      if (entry.command.empty() == own || !concerns(entry, command)) continue;
      CLI::Option* option = find_option(app, entry.name);
      if (option == nullptr || option->count() > 0) continue;
      const std::string from = config.path + ":" + std::to_string(entry.line);
      set(from, entry.values, *option);
      origins[entry.name] = {entry.values, from};
    }
  }
}

void check_below(const ConfigFile& config, CLI::App& app, const std::string& path) {
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    const std::string full = path.empty() ? command->get_name() : path + " " + command->get_name();
    ConfigOrigins ignored;
    apply_to(config, *command, full, ignored);
    check_below(config, *command, full);
  }
}

}  // namespace

void add_config_options(CLI::App& app, ConfigOptions& options) {
  app.add_option("--config", options.file, "defaults from this file (default: tierkv/config.toml in the XDG config folder)")
      ->type_name("FILE");
  app.add_flag("--no-config", options.none, "no defaults from a file");
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) add_config_options(*command, options);
}

ConfigFile read_config(const ConfigOptions& options, const CLI::App& app) {
  ConfigFile config;
  if (options.none) return config;
  config.path = options.file.empty() ? home_path("XDG_CONFIG_HOME", "/.config", "/tierkv/config.toml") : options.file;
  std::error_code ignored;
  if (config.path.empty() || (options.file.empty() && !std::filesystem::exists(config.path, ignored))) return config;
  const std::string text = engine::read_file(config.path);
  config.there = true;
  try {
    const toml::table table = toml::parse(text, config.path);
    Reader(config).top(table, app);
  } catch (const toml::parse_error& problem) {
    refuse(config.path, problem.source().begin.line, std::string(problem.description()));
  }
  std::sort(config.entries.begin(), config.entries.end(), [](const auto& a, const auto& b) { return a.line < b.line; });
  return config;
}

void apply_config(const ConfigFile& config, CLI::App& app, ConfigOrigins& origins) {
  CLI::App* at = &app;
  std::string command;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    command += (command.empty() ? "" : " ") + at->get_name();
  }
  apply_to(config, *at, command, origins);
}

std::string variable_of(const std::string& option) {
  std::string name = kVariables + option;
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

void apply_environment(CLI::App& app, ConfigOrigins& origins) {
  if (!app.got_subcommand("serve")) return;
  const CLI::App& command = *app.get_subcommand("serve");
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string entry = *at;
    const size_t equals = entry.find('=');
    if (!entry.starts_with(kVariables) || equals == std::string::npos) continue;
    const std::string variable = entry.substr(0, equals), value = entry.substr(equals + 1);
    std::string name = variable.substr(kVariables.size());
    for (char& c : name) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    CLI::Option* option = find_option(command, name);
    if (option == nullptr) bad_input(variable + ": tierkv serve has no option " + name + ": " + known_options(command));
    if (option->count() > 0 || value.empty()) continue;
    std::vector<std::string> values = {value};
    if (option->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll && name != "kv")
      values = CLI::detail::split(value, ',');
    set(variable, values, *option);
    origins[name] = {values, variable};
  }
}

void check_config(const ConfigFile& config, CLI::App& app) { check_below(config, app, ""); }

}  // namespace tierkv::cli
