// number_range.h — a check for options that take a real number: within the range, and a number at all ("nan" is in every range by
// CLI11's own comparison).
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <sstream>
#include <string>

namespace tierkv::cli {

inline CLI::Validator number_range(double least, double most) {
  std::ostringstream range;
  range << "[" << least << " - " << most << "]";
  const auto check = [=, text = range.str()](const std::string& given) -> std::string {
    double value = 0;
    const bool read = CLI::detail::lexical_cast(given, value);
    if (read && std::isfinite(value) && value >= least && value <= most) return {};
    return "Value " + given + " is not a number in the range " + text;
  };
  return CLI::Validator(check, "FLOAT in " + range.str());
}

}  // namespace tierkv::cli
