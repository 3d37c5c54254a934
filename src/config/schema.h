// schema.h — the one table of configuration keys: name, short name, type, allowed values, help, getter and setter.
//
// TOML, JSON, the inline form, to_json(), validate() and the tables of docs/use/configuration.md all go through it: a new key is a
// row. Threads: the tables are immutable; everything here is pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "config/tree.h"
#include "tierkv/config.h"

namespace tierkv::config {

// Counts, lengths and sizes are uint64_t ("all" is kAll), the rest double or text.
using Value = std::variant<uint64_t, double, std::string>;

// Lengths stop well below 2^32 so that sums of a few of them cannot wrap.
inline constexpr uint64_t kMaxTokens = 1u << 30;
inline constexpr uint64_t kMaxSinks = 256;  // one block

struct FieldType {
  enum class Kind : uint8_t {
    count,   // a whole number
    tokens,  // a whole number or "all"
    bytes,   // a whole number, or text with a unit: "2GiB", "512MiB", "1.5GB"
    real,    // above min_real, up to max_real
    text,    // a name
    choice,  // one of choices()
    codec,   // what quant::parse_codec_pair takes
  };
  Kind kind = Kind::count;
  uint64_t min = 0, max = 0;
  uint64_t multiple = 1;
  bool odd = false;
  bool or_zero = false;  // 0 is allowed beside min..max: "not set"
  double min_real = 0.0, max_real = 0.0;
  bool min_included = true;
  bool or_adaptive = false;  // codecs: quant::kAdaptive as well
  std::vector<std::string> (*choices)() = nullptr;
};

template <class Target>
struct Field {
  const char* section;  // "" or the table it is in
  const char* key;
  const char* alias;  // short name of the inline form, or ""
  FieldType type;
  const char* help;
  std::optional<Value> (*get)(const Target&);
  void (*set)(Target&, const Value&);

  // "eviction.policy"
  std::string path() const { return *section ? std::string(section) + "." + key : std::string(key); }
};

std::span<const Field<CacheConfig>> config_fields();
std::span<const Field<LayerOverride>> layer_fields();  // beside "layers"

// "a whole number in 16..256, a multiple of 16"
std::string allowed(const FieldType& type);
// Why a value does not fit, as the end of a sentence that starts with the key ("must be …, not 17"); empty when it does.
std::string misfit(const FieldType& type, const Value& value);
// A node as a value of this type; the error is a misfit() without key and place.
Result<Value> convert(const FieldType& type, const ConfigNode& node);

// "all", "64", "0.97" or the text itself.
std::string to_text(const FieldType& type, const Value& value);

// "2GiB" -> 2147483648. Exact: "1.5B" is refused.
Result<uint64_t> parse_bytes(std::string_view text);

// "3", "0-3" -> first, last.
Status parse_layers(const ConfigNode& node, LayerOverride& out);
std::string layers_text(const LayerOverride& override_);

// The rows of the tables in docs/use/configuration.md, made from the schema; a test holds the document to them.
std::vector<std::string> markdown_rows();

}  // namespace tierkv::config
