#include "config/skip_mode.h"

#include <charconv>

#include "base/status_macros.h"
#include "base/text.h"

namespace tierkv::config {
namespace {

template <class Number>
bool read_number(std::string_view text, Number& out) {
  const char* const end = text.data() + text.size();
  const auto [at, problem] = std::from_chars(text.data(), end, out);
  return problem == std::errc() && at == end;
}

}  // namespace

Result<SkipMode> parse_skip_mode(std::string_view text) {
  using Kind = SkipMode::Kind;
  if (text == "off" || text.empty()) return SkipMode{};
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const std::string_view number = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  SkipMode mode;
  if (name == "top" && read_number(number, mode.top) && mode.top >= 1 && mode.top <= 1000000) {
    mode.kind = Kind::top;
  } else if (name == "bounded" && read_number(number, mode.share) && mode.share >= 0.0 && mode.share < 1.0) {
    mode.kind = Kind::bounded;
  } else if (name == "top_p" && read_number(number, mode.share) && mode.share > 0.0 && mode.share <= 1.0) {
    mode.kind = Kind::top_p;
  }
  if (mode.kind != Kind::off) return mode;
  return error(StatusCode::invalid_argument,
               "must be off, bounded:EPS (from 0, below 1), top:K (K from 1 to 1000000) or top_p:P (above 0, up to 1), not ",
               quote(std::string(text)));
}

}  // namespace tierkv::config
