// print_config.h — the settings that a command would run with, as a configuration file: every option, and where its value came
// from.
#pragma once

#include <string>

#include "config_file.h"

namespace tierkv::cli {

// A table [NAME] of TOML. What nobody set and has no value of its own stands there as a comment; keys are not shown.
// REQUIRES: the command line, the file and the environment have been read.
std::string effective_config(const CLI::App& command, const ConfigOrigins& origins);

}  // namespace tierkv::cli
