// config.cc — `tierkv config`: which defaults there are, and whether the file that has them is right.
#include <nlohmann/json.hpp>

#include "commands.h"
#include "terminal.h"

namespace tierkv::cli {
namespace {

constexpr const char* kFooter =
    "The file is TOML. At its top stand model and threads, for every command, and kv, for chat, generate, serve and\n"
    "snapshot save.\n"
    "A table named after a command has any of its long options:\n"
    "\n"
    "  model = \"~/models/my-model.gguf\"\n"
    "  threads = 4\n"
    "  kv = \"quality\"\n"
    "  [chat]\n"
    "  temp = 0.5\n"
    "  system = \"You answer in one sentence.\"\n"
    "  [snapshot.save]\n"
    "  deep = true\n"
    "\n"
    "The command line wins over a command's table, and that over the top of the file.\n"
    "\n"
    "Examples:\n"
    "  tierkv config                       what is set, and where\n"
    "  tierkv config --config other.toml   check another file\n"
    "  tierkv chat --no-config             without any of it";

struct Request {
  Options options;
};

std::string joined(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : ", ") + value;
  return text;
}

int show(const Request& request, const ConfigFile& config) {
  nlohmann::json settings = nlohmann::json::array();
  Table table({"<command", "<option", "<value", "line"});
  for (const ConfigEntry& entry : config.entries) {
    table.add({entry.command.empty() ? "all" : entry.command, entry.name, bold(joined(entry.values)), std::to_string(entry.line)});
    settings.push_back({{"command", entry.command}, {"option", entry.name}, {"values", entry.values}, {"line", entry.line}});
  }
  if (request.options.text()) {
    if (config.path.empty()) std::printf("no defaults are read from a file\n");
    else if (!config.there) std::printf("there is no %s: tierkv config --help says what it may have\n", config.path.c_str());
    else std::printf("%s\n\n%s", config.path.c_str(), table.str().c_str());
  }
  emit_json(request.options, {{"command", "config"}, {"file", config.path}, {"there", config.there}, {"settings", settings}});
  return 0;
}

}  // namespace

void add_config(CLI::App& app, Action& action, const ConfigOptions& config) {
  CLI::App* command = app.add_subcommand("config", "Show the defaults that a configuration file sets, and check it");
  auto request = std::make_shared<Request>();
  command->footer(kFooter);
  add_output_options(*command, request->options);
  command->callback([request, &app, &action, &config] {
    action = [request, &app, &config] {
      settle(request->options);
      const ConfigFile file = read_config(config, app);
      check_config(file, app);
      return show(*request, file);
    };
  });
}

}  // namespace tierkv::cli
