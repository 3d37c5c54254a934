#include "print_config.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace tierkv::cli {
namespace {

bool is_flag(const CLI::Option& option) { return option.get_type_size() == 0 || option.get_expected_min() == 0; }

bool is_number(const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789.-+e") != std::string::npos) return false;
  size_t used = 0;
  try {
    (void)std::stod(text, &used);
  } catch (const std::exception&) {
    return false;
  }
  // TOML has neither 05 nor .5 nor 5.
  const std::string digits = text.substr(text.find_first_not_of("+-"));
  const bool plain = digits.size() == 1 || digits[0] != '0' || digits[1] == '.';
  return used == text.size() && plain && digits.front() != '.' && digits.back() != '.';
}

// A basic string of TOML has JSON's escapes.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string value_of(const CLI::Option& option, const std::vector<std::string>& values) {
  const auto one = [&](const std::string& text) {
    if (is_flag(option)) return std::string(text == "false" || text == "0" ? "false" : "true");
    return is_number(text) ? text : quoted(text);
  };
  if (values.size() == 1) return one(values.front());
  std::string list;
  for (const std::string& value : values) list += (list.empty() ? "" : ", ") + one(value);
  return "[" + list + "]";
}

std::string line(const std::string& setting, const std::string& comment) {
  constexpr size_t kColumn = 36;
  return setting + std::string(setting.size() < kColumn ? kColumn - setting.size() : 1, ' ') + "# " + comment + "\n";
}

}  // namespace

std::string effective_config(const CLI::App& command, const ConfigOrigins& origins) {
  std::string out = "[" + command.get_name() + "]\n";
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty() || option->get_group().empty()) continue;
    const std::string& name = option->get_lnames().front();
    if (find_option(command, name) == nullptr) continue;
    const auto origin = origins.find(name);
    std::vector<std::string> values;
    std::string from = "default";
    if (option->count() > 0) values = option->results(), from = "the command line";
    else if (origin != origins.end()) values = origin->second.values, from = origin->second.from;
    else if (is_flag(*option)) values = {"false"};
    else if (!option->get_default_str().empty()) values = {option->get_default_str()};
    if (name == "api-key" && !values.empty()) {
      out += line("# " + name + " = ...", from + ": " + std::to_string(values.size()) + " that are not shown");
    } else if (values.empty()) {
      out += line("# " + name + " =", "default: " + option->get_description());
    } else {
      out += line(name + " = " + value_of(*option, values), from);
    }
  }
  return out;
}

}  // namespace tierkv::cli
