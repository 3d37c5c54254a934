// The thresholds' file; its form is in thresholds.h.
#include <algorithm>
#include <map>
#include <set>

#include "base/file.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "config/json_text.h"
#include "config/schema.h"
#include "config/tree.h"
#include "plan/thresholds.h"

namespace tierkv::plan {

using namespace config;
namespace {

constexpr size_t kMaxFileBytes = 16u << 20;
constexpr const char* kFormat = "tierkv thresholds";
constexpr uint64_t kVersion = 1;
constexpr std::string_view kPrefix = "kv_threshold:";

using Key = std::pair<std::string, uint32_t>;  // model, layer
using Store = std::map<Key, LayerThresholds>;

// "kv_threshold:MODEL:LAYER"; a model's name may hold colons, so the last one counts.
bool parse_key(std::string_view text, Key& out) {
  if (!text.starts_with(kPrefix)) return false;
  text.remove_prefix(kPrefix.size());
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return false;
  const std::string_view digits = text.substr(colon + 1);
  if (digits.empty() || digits.size() > 4 || digits.find_first_not_of("0123456789") != std::string_view::npos) return false;
  if (digits.size() > 1 && digits[0] == '0') return false;
  out = {std::string(text.substr(0, colon)), static_cast<uint32_t>(std::stoul(std::string(digits)))};
  return true;
}

struct EntryField {
  const char* key;
  FieldType::Kind kind;
  uint64_t min, max;
  uint32_t LayerThresholds::*member;
};
constexpr EntryField kEntryFields[] = {
    {"hot", FieldType::Kind::tokens, 0, kMaxTokens, &LayerThresholds::hot},
    {"warm", FieldType::Kind::tokens, 0, kMaxTokens, &LayerThresholds::warm},
    {"archive_bits", FieldType::Kind::count, 1, kMostArchiveBits, &LayerThresholds::archive_bits}};

template <class... Parts>
Status damaged(std::string_view path, uint32_t line, const Parts&... parts) {
  return error(StatusCode::data_loss, config_place(path, line), parts...);
}

Result<LayerThresholds> parse_entry(const ConfigMember& entry, std::string_view path) {
  LayerThresholds out;
  std::set<std::string> seen;
  for (const ConfigMember& member : entry.value.members) {
    const auto* field =
        std::find_if(std::begin(kEntryFields), std::end(kEntryFields), [&](const auto& f) { return member.key == f.key; });
    if (field == std::end(kEntryFields) || !seen.insert(member.key).second) {
      return damaged(path, member.line, quote(entry.key), " holds hot, warm and archive_bits once each, not ", quote(member.key));
    }
    FieldType type;
    type.kind = field->kind, type.min = field->min, type.max = field->max;
    const auto value = convert(type, member.value);
    if (!value.ok()) return damaged(path, member.line, quote(member.key), " ", value.status().message());
    out.*(field->member) = static_cast<uint32_t>(std::get<uint64_t>(value.value()));
  }
  if (seen.size() != std::size(kEntryFields)) {
    return damaged(path, entry.line, quote(entry.key), " must hold hot, warm and archive_bits");
  }
  return out;
}

Result<Store> parse_store(std::string_view text, std::string_view path) {
  auto root = parse_json_tree(text, path, kMaxFileBytes);
  if (!root.ok()) return error(StatusCode::data_loss, root.status().message());
  Store store;
  bool format = false, version = false;
  for (const ConfigMember& member : root.value().members) {
    if (member.key == "format") {
      format = member.value.type == ConfigNode::Type::string && member.value.text == kFormat;
    } else if (member.key == "version") {
      version = member.value.type == ConfigNode::Type::integer && !member.value.negative && member.value.magnitude >= 1;
      if (version && member.value.magnitude > kVersion) {
        return error(StatusCode::unsupported, config_place(path, member.line), "version ", member.value.magnitude,
                     " of the thresholds' file; this build reads up to ", kVersion);
      }
    } else {
      Key key;
      if (!parse_key(member.key, key) || member.value.type != ConfigNode::Type::table) {
        return damaged(path, member.line, "unknown key ", quote(member.key), "; expected kv_threshold:MODEL:LAYER with a table");
      }
      TIERKV_ASSIGN_OR_RETURN(const LayerThresholds entry, parse_entry(member, path));
      if (!store.emplace(std::move(key), entry).second) return damaged(path, member.line, quote(member.key), " is given twice");
    }
  }
  if (!format || !version) return damaged(path, 0, "not a thresholds' file: no \"format\": \"", kFormat, "\" with a version");
  return store;
}

void add_length(config::JsonText& out, const char* key, uint32_t tokens) {
  tokens == kAll ? out.add(key, "all") : out.add(key, tokens);
}

std::string to_text(const Store& store) {
  config::JsonText out;
  out.add("format", kFormat);
  out.add("version", kVersion);
  for (const auto& [key, t] : store) {
    out.begin_object(std::string(kPrefix) + key.first + ":" + std::to_string(key.second));
    add_length(out, "hot", t.hot);
    add_length(out, "warm", t.warm);
    out.add("archive_bits", t.archive_bits);
    out.end();
  }
  return out.finish();
}

Status check_model(std::string_view model) {
  if (model.size() <= 256 && valid_utf8(model)) return {};
  return error(StatusCode::invalid_argument, "a model's name is UTF-8 of at most 256 bytes, not ", quote(model));
}

}  // namespace

Status save_thresholds_file(const std::string& path, std::string_view model, std::span<const LayerThresholds> thresholds) {
  TIERKV_RETURN_IF_ERROR(check_model(model));
  Store store;
  const auto old = read_text_file(path, kMaxFileBytes);
  if (old.ok()) {
    auto parsed = parse_store(old.value(), path);
    if (!parsed.ok()) {
      return error(StatusCode::failed_precondition, quote(path), " exists and is not overwritten: ", parsed.status().message());
    }
    store = std::move(parsed).value();
  } else if (old.status().code() != StatusCode::not_found) {
    return old.status();
  }
  std::erase_if(store, [&](const auto& entry) { return entry.first.first == model; });
  for (uint32_t layer = 0; layer < thresholds.size(); ++layer) store[{std::string(model), layer}] = thresholds[layer];
  return write_file_atomic(path, to_text(store));
}

Result<std::vector<LayerThresholds>> load_thresholds_file(const std::string& path, std::string_view model) {
  TIERKV_RETURN_IF_ERROR(check_model(model));
  TIERKV_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxFileBytes));
  TIERKV_ASSIGN_OR_RETURN(const Store store, parse_store(text, path));
  std::vector<LayerThresholds> out;
  std::set<std::string> models;
  for (const auto& [key, thresholds] : store) {
    models.insert(key.first);
    if (key.first != model) continue;
    if (key.second != out.size()) return damaged(path, 0, "no entry for layer ", out.size(), " of ", quote(model));
    out.push_back(thresholds);
  }
  if (!out.empty()) return out;
  std::vector<std::string> names;
  for (const std::string& name : models) names.push_back(quote(name));
  return error(StatusCode::not_found, config_place(path, 0), "no thresholds for model ", quote(model), "; it holds ",
               names.empty() ? std::string("none") : join(names));
}

}  // namespace tierkv::plan
