// warm_auto.h — what "auto" stands for in the warm tier: 4 bits, with tables where the model has some.
#pragma once

#include <string_view>

namespace tierkv::quant {

// Without tables: for layers that a calibration says nothing about, and for models that have none.
inline constexpr std::string_view kWarmWithoutTables = "even4";
// Values as rot has them: at 4 bits its minimum and maximum are better than a fitted step.
inline constexpr std::string_view kWarmWithTables = "kltk4/rot4";

// Any other name as it is.
inline std::string_view resolve_warm(std::string_view name, bool calibrated) {
  if (name != "auto") return name;
  return calibrated ? kWarmWithTables : kWarmWithoutTables;
}

}  // namespace tierkv::quant
