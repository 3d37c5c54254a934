#include "config/tree.h"

#include "base/status_macros.h"
#include "base/text.h"

namespace tierkv::config {

std::string config_place(std::string_view origin, uint32_t line) {
  std::string out(origin);
  if (line != 0) out += ":" + std::to_string(line);
  return out + ": ";
}

std::string describe(const ConfigNode& node) {
  switch (node.type) {
    case ConfigNode::Type::null: return "null";
    case ConfigNode::Type::boolean: return node.magnitude ? "true" : "false";
    case ConfigNode::Type::integer: return (node.negative ? "-" : "") + std::to_string(node.magnitude);
    case ConfigNode::Type::real: return node.text;
    case ConfigNode::Type::string: return quote(node.text) + " (a string)";
    case ConfigNode::Type::word: return quote(node.text);
    case ConfigNode::Type::table: return "a table";
    case ConfigNode::Type::array: return "an array";
    case ConfigNode::Type::other: return node.text;
  }
  return "a value";
}

Status check_config_size(std::string_view text, std::string_view origin, size_t max_bytes) {
  if (text.size() <= max_bytes) return {};
  return error(StatusCode::invalid_argument, config_place(origin, 0), "a text of ", text.size(), " bytes; at most ", max_bytes,
               " are read");
}

}  // namespace tierkv::config
