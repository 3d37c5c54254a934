// tree.h — configuration text as a small tree that remembers the line of every key and value.
//
// TOML and JSON become the same tree, so one function (apply.cc) checks and applies both. Hostile text is bounded before it
// costs anything: kMaxConfigBytes of it, kMaxConfigDepth levels.
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tierkv/status.h"

namespace tierkv::config {

inline constexpr size_t kMaxConfigBytes = 256 * 1024;
inline constexpr int kMaxConfigDepth = 8;

struct ConfigMember;

struct ConfigNode {
  enum class Type : uint8_t {
    null,
    boolean,
    integer,  // negative, magnitude
    real,     // real
    string,   // text
    word,     // text: from the inline form, where the field decides what it is
    table,    // members, in the order of the text
    array,    // items
    other,    // text says what (a TOML date)
  };
  Type type = Type::null;
  uint32_t line = 0;  // from 1; 0: the form has no lines
  bool negative = false;
  uint64_t magnitude = 0;
  double real = 0.0;
  std::string text;  // also the number as it was written, where known
  std::vector<ConfigMember> members;
  std::vector<ConfigNode> items;
};

struct ConfigMember {
  std::string key;
  uint32_t line = 0;
  ConfigNode value;
};

// Errors read "origin:line: what". The root is a table. Duplicate keys may remain (JSON allows them); applying refuses them.
Result<ConfigNode> parse_json_tree(std::string_view text, std::string_view origin, size_t max_bytes = kMaxConfigBytes);
Result<ConfigNode> parse_toml_tree(std::string_view text, std::string_view origin);

// "origin:line: " or "origin: "
std::string config_place(std::string_view origin, uint32_t line);
// The value as a message names it: "'abc' (a string)", "-3", "a table".
std::string describe(const ConfigNode& node);

// Refuses text past `max_bytes`.
Status check_config_size(std::string_view text, std::string_view origin, size_t max_bytes = kMaxConfigBytes);

}  // namespace tierkv::config
