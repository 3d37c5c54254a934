// TOML text -> ConfigNode, by toml++. The only file that includes it.
#include <algorithm>
#include <toml++/toml.h>

#include "base/status_macros.h"
#include "base/text.h"
#include "cache/config_tree.h"

namespace tierkv::cache {
namespace {

// toml++ bounds nested values but not dotted keys, and its tables are destroyed recursively: "a.a.a…" of a hostile length would
// overflow the stack. Keys here have one dot, so a line outside comments with many of them is refused before parsing.
constexpr int kMaxDotsPerLine = 16;

Status check_dots(std::string_view text, std::string_view origin) {
  uint32_t line = 1;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view row = text.substr(0, end);
    const size_t first = row.find_first_not_of(" \t");
    if (first != std::string_view::npos && row[first] != '#' && std::count(row.begin(), row.end(), '.') > kMaxDotsPerLine) {
      return error(StatusCode::invalid_argument, config_place(origin, line), "more than ", kMaxDotsPerLine,
                   " dots in one line; keys nest once: eviction.policy");
    }
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line;
  }
  return {};
}

class Converter {
 public:
  explicit Converter(std::string_view origin) : origin_(origin) {}

  Result<ConfigNode> convert(const toml::node& in, int depth) const {
    ConfigNode out;
    out.line = in.source().begin.line;
    if (depth > kMaxConfigDepth) {
      return error(StatusCode::invalid_argument, config_place(origin_, out.line), "nested more than ", kMaxConfigDepth,
                   " deep; a configuration needs 3 levels");
    }
    if (const auto* table = in.as_table()) return convert_table(*table, std::move(out), depth);
    if (const auto* array = in.as_array()) {
      out.type = ConfigNode::Type::array;
      for (const toml::node& item : *array) {
        TIERKV_ASSIGN_OR_RETURN(out.items.emplace_back(), convert(item, depth + 1));
      }
    } else if (const auto* text = in.as_string()) {
      out.type = ConfigNode::Type::string;
      out.text = text->get();
    } else if (const auto* integer = in.as_integer()) {
      out.type = ConfigNode::Type::integer;
      const int64_t value = integer->get();
      out.negative = value < 0;
      out.magnitude = out.negative ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    } else if (const auto* real = in.as_floating_point()) {
      out.type = ConfigNode::Type::real;
      out.real = real->get();
      std::ostringstream written;
      written << out.real;
      out.text = written.str();
      if (out.text.find_first_of(".en") == std::string::npos) out.text += ".0";  // as in "64.0": show that it was no whole number
    } else if (const auto* boolean = in.as_boolean()) {
      out.type = ConfigNode::Type::boolean;
      out.magnitude = boolean->get() ? 1 : 0;
    } else {
      out.type = ConfigNode::Type::other;
      out.text = "a date or time";
    }
    return out;
  }

 private:
  Result<ConfigNode> convert_table(const toml::table& table, ConfigNode out, int depth) const {
    out.type = ConfigNode::Type::table;
    for (const auto& [key, value] : table) {
      ConfigMember member{std::string(key.str()), key.source().begin.line, {}};
      TIERKV_ASSIGN_OR_RETURN(member.value, convert(value, depth + 1));
      if (member.line == 0) member.line = member.value.line;
      out.members.push_back(std::move(member));
    }
    // toml++ sorts by name; messages should name the first problem of the file.
    std::stable_sort(out.members.begin(), out.members.end(), [](const auto& a, const auto& b) { return a.line < b.line; });
    return out;
  }

  std::string_view origin_;
};

}  // namespace

Result<ConfigNode> parse_toml_tree(std::string_view text, std::string_view origin) {
  TIERKV_RETURN_IF_ERROR(check_config_size(text, origin));
  TIERKV_RETURN_IF_ERROR(check_dots(text, origin));
  try {
    const toml::table root = toml::parse(text);
    return Converter(origin).convert(root, 0);
  } catch (const toml::parse_error& e) {
    return error(StatusCode::invalid_argument, config_place(origin, e.source().begin.line), "not TOML: ",
                 printable(e.description(), 200));
  } catch (const std::exception& e) {
    return error(StatusCode::invalid_argument, config_place(origin, 0), "not TOML: ", e.what());
  }
}

}  // namespace tierkv::cache
