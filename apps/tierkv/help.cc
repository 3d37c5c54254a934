// help.cc — options and commands as two columns.
#include "help.h"

#include <algorithm>
#include <sstream>

#include "terminal.h"

namespace tierkv::cli {
namespace {

constexpr size_t kColumn = 26;

// `left` in its column, `right` beside it in lines that fit.
std::string columns(const std::string& left, const std::string& right) {
  const size_t width = static_cast<size_t>(std::clamp(terminal_width(), 70, 120)) - kColumn;
  std::string text = "  " + left, line;
  if (text.size() + 1 >= kColumn) text += "\n" + std::string(kColumn, ' ');
  else text.resize(kColumn, ' ');
  std::istringstream words(right);
  for (std::string word; words >> word;) {
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      text += line + "\n" + std::string(kColumn, ' ');
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return text + line + "\n";
}

// CLI11 calls numbers after their C++ types and lists what is allowed; a letter says as much.
std::string short_type(const CLI::Option* option) {
  std::string type = option->get_type_name();
  type = type.substr(0, type.find(':'));
  if (type == "UINT" || type == "INT") return "N";
  return type == "FLOAT" ? "X" : type;
}

}  // namespace

std::string option_names(const CLI::Option* option) {
  std::string names;
  for (const std::string& name : option->get_snames()) names += (names.empty() ? "-" : ", -") + name;
  for (const std::string& name : option->get_lnames()) names += (names.empty() ? "--" : ", --") + name;
  if (option->get_items_expected_max() > 0 && option->get_type_size() != 0) names += " " + short_type(option);
  return names;
}

std::string option_description(const CLI::Option* option) {
  const std::string text = option->get_description();
  return option->get_default_str().empty() ? text : text + " (default: " + option->get_default_str() + ")";
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  return columns(is_positional ? option->get_name(true) : option_names(option), option_description(option));
}

std::string HelpFormatter::make_subcommand(const CLI::App* command) const {
  return columns(command->get_name(), command->get_description());
}

std::string HelpFormatter::make_usage(const CLI::App* app, std::string name) const {
  std::string text = "Usage: " + (name.empty() ? app->get_name() : name);
  for (const CLI::Option* option : app->get_options([](const CLI::Option* o) { return o->get_positional(); })) {
    text += option->get_required() ? " " + option->get_name(true) : " [" + option->get_name(true) + "]";
  }
  if (!app->get_subcommands([](const CLI::App*) { return true; }).empty()) text += " COMMAND";
  return text + " [options]\n";
}

}  // namespace tierkv::cli
