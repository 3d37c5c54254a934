// CacheConfig -> JSON, by the schema.
#include "config/json_text.h"
#include "config/schema.h"

namespace tierkv {
namespace config {
namespace {

void add_value(JsonText& out, const char* key, const FieldType& type, const Value& value) {
  const auto* whole = std::get_if<uint64_t>(&value);
  if (whole && !(type.kind == FieldType::Kind::tokens && *whole == kAll)) return out.add(key, *whole);
  if (const auto* real = std::get_if<double>(&value)) return out.add(key, *real);
  out.add(key, to_text(type, value));
}

}  // namespace
}  // namespace config

std::string to_json(const CacheConfig& config) {
  config::JsonText out;
  std::string_view section;
  for (const auto& field : config::config_fields()) {  // those of a section stand together
    if (section != field.section) {
      if (!section.empty()) out.end();
      section = field.section;
      if (!section.empty()) out.begin_object(section);
    }
    config::add_value(out, field.key, field.type, *field.get(config));
  }
  if (!section.empty()) out.end();
  out.begin_array("layer");
  for (const LayerOverride& o : config.overrides) {
    out.begin_object("");
    out.add("layers", config::layers_text(o));
    for (const auto& field : config::layer_fields()) {
      if (const auto value = field.get(o)) config::add_value(out, field.key, field.type, *value);
    }
    out.end();
  }
  out.end();
  return out.finish();
}

}  // namespace tierkv
