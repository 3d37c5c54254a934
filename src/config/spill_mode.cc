#include "config/spill_mode.h"

#include <charconv>

#include "base/status_macros.h"
#include "base/text.h"

namespace tierkv::config {

Result<SpillMode> parse_spill_mode(std::string_view text) {
  using Kind = SpillMode::Kind;
  const auto refused = [&] {
    return error(StatusCode::invalid_argument,
                 "must be off, exact, top:K (K from 1 to 1000000) or bounded:EPS (above 0, below 1), not ",
                 quote(std::string(text)));
  };
  if (text == "off" || text.empty()) return SpillMode{};
  if (text == "exact") return SpillMode{Kind::exact, 0, 0.0};
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return refused();
  const std::string_view name = text.substr(0, colon), number = text.substr(colon + 1);
  const char* const end = number.data() + number.size();
  SpillMode mode;
  if (name == "top") {
    mode.kind = Kind::top;
    const auto [at, problem] = std::from_chars(number.data(), end, mode.top);
    if (problem != std::errc() || at != end || mode.top < 1 || mode.top > 1000000) return refused();
    return mode;
  }
  mode.kind = Kind::bounded;
  const auto [at, problem] = std::from_chars(number.data(), end, mode.bounded);
  if (name != "bounded" || problem != std::errc() || at != end || !(mode.bounded > 0.0 && mode.bounded < 1.0)) return refused();
  return mode;
}

}  // namespace tierkv::config
