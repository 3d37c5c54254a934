// help.h — how --help looks: short types, defaults in words, lines no longer than the terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace tierkv::cli {

// "-n, --tokens N", and what it does with its default.
std::string option_names(const CLI::Option* option);
std::string option_description(const CLI::Option* option);

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* command) const override;
  std::string make_usage(const CLI::App* app, std::string name) const override;
};

}  // namespace tierkv::cli
