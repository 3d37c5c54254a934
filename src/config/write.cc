// CacheConfig -> JSON, by the schema.
#include <nlohmann/json.hpp>

#include "config/schema.h"

namespace tierkv {
namespace config {
namespace {

nlohmann::ordered_json to_json_value(const FieldType& type, const Value& value) {
  if (const auto* v = std::get_if<uint64_t>(&value); v != nullptr && !(type.kind == FieldType::Kind::tokens && *v == kAll))
    return *v;
  if (const auto* v = std::get_if<double>(&value)) return *v;
  return to_text(type, value);
}

}  // namespace
}  // namespace config

std::string to_json(const CacheConfig& config) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  for (const auto& field : config::config_fields()) {
    auto& table = *field.section ? root[field.section] : root;
    table[field.key] = config::to_json_value(field.type, *field.get(config));
  }
  auto& layers = root["layer"] = nlohmann::ordered_json::array();
  for (const LayerOverride& o : config.overrides) {
    auto& entry = layers.emplace_back(nlohmann::ordered_json::object());
    entry["layers"] = config::layers_text(o);
    for (const auto& field : config::layer_fields()) {
      if (const auto value = field.get(o)) entry[field.key] = config::to_json_value(field.type, *value);
    }
  }
  // A model name that is not UTF-8 can only come from code, and validate() refuses it; here it must not throw.
  return root.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace tierkv
