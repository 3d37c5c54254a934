// Text -> CacheConfig: the tree of a file or the words of the inline form against the schema. All or nothing.
#include <algorithm>
#include <map>

#include "base/file.h"
#include "base/guarded.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "config/presets.h"
#include "config/schema.h"
#include "config/tree.h"
#include "config/validate.h"

namespace tierkv {
namespace config {
namespace {

using Type = ConfigNode::Type;

bool set_by_preset(const std::string& key) {
  for (const char* name : {"hot", "warm", "warm_codec", "archive_codec", "sinks", "warm_block", "archive_block"}) {
    if (key == name) return true;
  }
  return key.starts_with("eviction.") || key.starts_with("deep.");
}

// Fills a copy of the configuration and remembers where each key stood.
class Applier {
 public:
  Applier(const CacheConfig& base, std::string_view origin) : next_(base), origin_(origin) {}

  template <class... Parts>
  Status refuse(uint32_t line, const Parts&... parts) const {
    return error(StatusCode::invalid_argument, config_place(origin_, line), parts...);
  }

  // Records that a key was given; refuses it a second time.
  Status claim(const std::string& path, uint32_t line) {
    const auto [it, fresh] = lines_.emplace(path, line);
    if (fresh) return {};
    if (it->second == 0) return refuse(line, "key '", path, "' is given twice");
    return refuse(line, "key '", path, "' is given twice; first in line ", it->second);
  }

  Status preset(const ConfigNode& node, uint32_t line) {
    TIERKV_RETURN_IF_ERROR(claim("preset", line));
    if (node.type != Type::string && node.type != Type::word) {
      return refuse(line, "'preset' must be one of ", join(preset_names()), ", not ", describe(node));
    }
    if (const Status status = apply_preset(node.text, next_); !status.ok()) return refuse(line, status.message());
    return {};
  }

  template <class Target>
  Status assign(const Field<Target>& field, const std::string& path, uint32_t line, const ConfigNode& node, Target& target) {
    TIERKV_RETURN_IF_ERROR(claim(path, line));
    const auto value = convert(field.type, node);
    if (!value.ok()) return refuse(line, "'", path, "' ", value.status().message());
    field.set(target, value.value());
    return {};
  }

  CacheConfig& config() { return next_; }

  // The first impossible combination that the text has a part in; older sins of the base are validate()'s.
  Status finish(CacheConfig& out) const {
    for (const ConfigProblem& problem : find_problems(next_, false)) {
      for (const std::string& key : problem.keys) {
        if (const auto it = lines_.find(key); it != lines_.end()) return refuse(it->second, problem.message);
      }
      const auto preset = lines_.find("preset");
      if (preset != lines_.end() && std::any_of(problem.keys.begin(), problem.keys.end(), set_by_preset)) {
        return refuse(preset->second, problem.message);
      }
    }
    out = next_;
    return {};
  }

 private:
  CacheConfig next_;
  std::string_view origin_;
  std::map<std::string, uint32_t> lines_;
};

// "unknown key 'archve'; did you mean 'archive_codec'? allowed keys: …"
template <class Target>
std::string unknown_key(std::span<const Field<Target>> fields, std::string_view section, const std::string& shown,
                        std::string_view key, std::vector<std::string> extra, bool inline_form) {
  std::vector<std::string> typed, meant, keys;
  const auto candidate = [&](std::string_view name, std::string suggestion) {
    typed.emplace_back(name), meant.push_back(std::move(suggestion));
  };
  for (std::string& name : extra) candidate(name, name), keys.push_back(name);
  std::string elsewhere;
  for (const auto& field : fields) {
    if (!inline_form && section != field.section) {
      if (key == field.key) elsewhere = field.path();
      continue;
    }
    const std::string best = inline_form && *field.alias ? field.alias : inline_form ? field.path() : field.key;
    keys.push_back(best);
    candidate(field.key, best);
    if (inline_form) candidate(field.path(), best);
    if (*field.alias) candidate(field.alias, best);
  }
  std::string out = "unknown key " + quote(shown);
  const int guess = nearest(key, typed);
  if (!elsewhere.empty()) {
    out += elsewhere == key ? "; '" + elsewhere + "' belongs at the top, before any table" : "; did you mean '" + elsewhere + "'?";
  } else if (guess >= 0) {
    out += "; did you mean '" + meant[static_cast<size_t>(guess)] + "'?";
  }
  return out + (out.back() == '?' ? " allowed keys: " : "; allowed keys: ") + join(keys);
}

Status apply_layer(const ConfigNode& table, uint32_t line, size_t index, Applier& applier) {
  const std::string prefix = "layer[" + std::to_string(index) + "]";
  if (table.type != Type::table)
    return applier.refuse(line, "'", prefix, "' must be a table with 'layers' and settings, not ", describe(table));
  LayerOverride out;
  bool named = false;
  for (const ConfigMember& member : table.members) {
    const std::string path = prefix + "." + member.key;
    if (member.key == "layers") {
      TIERKV_RETURN_IF_ERROR(applier.claim(path, member.line));
      if (const Status status = parse_layers(member.value, out); !status.ok()) {
        return applier.refuse(member.line, "'", path, "' ", status.message());
      }
      named = true;
      continue;
    }
    const auto fields = layer_fields();
    const auto it = std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return member.key == f.key; });
    if (it == fields.end()) return applier.refuse(member.line, unknown_key(fields, "", path, member.key, {"layers"}, false));
    TIERKV_RETURN_IF_ERROR(applier.assign(*it, path, member.line, member.value, out));
  }
  if (!named) return applier.refuse(line, "'", prefix, "' needs 'layers': a layer such as 3 or a range such as \"0-3\"");
  applier.config().overrides.push_back(std::move(out));
  return {};
}

Status apply_layers(const ConfigMember& member, Applier& applier) {
  TIERKV_RETURN_IF_ERROR(applier.claim("layer", member.line));
  if (member.value.type != Type::array) {
    return applier.refuse(member.line, "'layer' must be an array of tables ([[layer]] in TOML), not ", describe(member.value));
  }
  applier.config().overrides.clear();  // a file that speaks of layers speaks of all of them
  for (size_t i = 0; i < member.value.items.size(); ++i) {
    const ConfigNode& item = member.value.items[i];
    TIERKV_RETURN_IF_ERROR(apply_layer(item, item.line ? item.line : member.line, i, applier));
  }
  return {};
}

Status apply_section(const ConfigNode& table, std::string_view section, Applier& applier) {
  const auto fields = config_fields();
  for (const ConfigMember& member : table.members) {
    const std::string path = section.empty() ? member.key : std::string(section) + "." + member.key;
    if (section.empty() && member.key == "preset") continue;
    if (section.empty() && member.key == "layer") {
      TIERKV_RETURN_IF_ERROR(apply_layers(member, applier));
      continue;
    }
    const bool is_table =
        std::any_of(fields.begin(), fields.end(), [&](const auto& f) { return *f.section && member.key == f.section; });
    if (section.empty() && is_table) {
      TIERKV_RETURN_IF_ERROR(applier.claim(member.key, member.line));
      if (member.value.type != Type::table) {
        return applier.refuse(member.line, "'", member.key, "' must be a table ([", member.key, "] in TOML), not ",
                              describe(member.value));
      }
      TIERKV_RETURN_IF_ERROR(apply_section(member.value, member.key, applier));
      continue;
    }
    const auto it =
        std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return section == f.section && member.key == f.key; });
    if (it == fields.end()) {
      const std::vector<std::string> extra =
          section.empty() ? std::vector<std::string>{"preset", "eviction", "deep", "layer"} : std::vector<std::string>{};
      return applier.refuse(member.line, unknown_key(fields, section, path, member.key, extra, false));
    }
    TIERKV_RETURN_IF_ERROR(applier.assign(*it, path, member.line, member.value, applier.config()));
  }
  return {};
}

Status apply_tree(const Result<ConfigNode>& root, CacheConfig& config, std::string_view origin) {
  if (!root.ok()) return root.status();
  Applier applier(config, origin);
  // The preset is where everything else starts from, wherever it stands.
  for (const ConfigMember& member : root.value().members) {
    if (member.key == "preset") TIERKV_RETURN_IF_ERROR(applier.preset(member.value, member.line));
  }
  TIERKV_RETURN_IF_ERROR(apply_section(root.value(), "", applier));
  return applier.finish(config);
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

ConfigNode word(std::string_view text) {
  ConfigNode node;
  node.type = Type::word, node.text = text;
  return node;
}

Status apply_pair(std::string_view key, std::string_view value, Applier& applier) {
  if (key == "preset") return applier.preset(word(value), 0);
  const auto fields = config_fields();
  const auto it =
      std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return key == f.path() || (*f.alias && key == f.alias); });
  if (it == fields.end()) return applier.refuse(0, unknown_key(fields, "", std::string(key), key, {"preset"}, true));
  return applier.assign(*it, it->path(), 0, word(value), applier.config());
}

bool ends_with(std::string_view text, std::string_view ending) {
  return text.size() > ending.size() && text.substr(text.size() - ending.size()) == ending;
}

constexpr const char* kInline = "inline";

}  // namespace
}  // namespace config

Status apply_toml(std::string_view text, CacheConfig& config, std::string_view origin) try {
  return config::apply_tree(config::parse_toml_tree(text, origin), config, origin);
}
TIERKV_NO_MEMORY("read a configuration")

Status apply_json(std::string_view text, CacheConfig& config, std::string_view origin) try {
  return config::apply_tree(config::parse_json_tree(text, origin), config, origin);
}
TIERKV_NO_MEMORY("read a configuration")

Status apply_file(const std::string& path, CacheConfig& config) try {
  const bool toml = config::ends_with(path, ".toml");
  if (!toml && !config::ends_with(path, ".json")) {
    return error(StatusCode::invalid_argument, "the configuration file ", quote(path), " must end in .toml or .json");
  }
  TIERKV_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, config::kMaxConfigBytes));
  return toml ? apply_toml(text, config, path) : apply_json(text, config, path);
}
TIERKV_NO_MEMORY("read a configuration")

Status apply_inline(std::string_view text, CacheConfig& config) try {
  TIERKV_RETURN_IF_ERROR(config::check_config_size(text, config::kInline));
  config::Applier applier(config, config::kInline);
  std::string_view rest = text;
  for (bool first = true, more = true; more; first = false) {
    const size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    const std::string_view item = config::trimmed(rest.substr(0, comma));
    if (more) rest.remove_prefix(comma + 1);
    const size_t equals = item.find('=');
    if (equals != std::string_view::npos) {
      TIERKV_RETURN_IF_ERROR(
          config::apply_pair(config::trimmed(item.substr(0, equals)), config::trimmed(item.substr(equals + 1)), applier));
    } else if (item.empty()) {
      return applier.refuse(0, "an empty setting in ", quote(text), "; expected a preset or key=value, separated by commas");
    } else if (first) {
      TIERKV_RETURN_IF_ERROR(applier.preset(config::word(item), 0));
    } else {
      return applier.refuse(0, quote(item), " has no value; expected key=value (a preset comes first)");
    }
  }
  return applier.finish(config);
}
TIERKV_NO_MEMORY("read a configuration")

Status apply_spec(std::string_view spec, CacheConfig& config) try {
  const std::string_view text = config::trimmed(spec);
  const bool file = config::ends_with(text, ".toml") || config::ends_with(text, ".json");
  if (file && text.find('=') == std::string_view::npos) return apply_file(std::string(text), config);
  if (file) {
    // "runs/lr=0.1/kv.toml" is a path, "model=a.json" is not: what exists decides.
    if (const auto found = read_text_file(std::string(text), config::kMaxConfigBytes); found.ok())
      return apply_file(std::string(text), config);
  }
  const auto names = preset_names();
  const std::string_view head = config::trimmed(text.substr(0, text.find(',')));
  if (head.find('=') == std::string_view::npos && std::find(names.begin(), names.end(), head) == names.end()) {
    const int guess = nearest(head, names);
    return error(StatusCode::invalid_argument, quote(head), " is no preset (", join(names),
                 "), no .toml or .json file and no key=value",
                 guess >= 0 ? "; did you mean '" + names[static_cast<size_t>(guess)] + "'?" : "");
  }
  return apply_inline(text, config);
}
TIERKV_NO_MEMORY("read a configuration")

}  // namespace tierkv
