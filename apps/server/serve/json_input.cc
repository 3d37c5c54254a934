#include "serve/json_input.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/text.h"
#include "serve/api_error.h"

namespace tierkv::serve {
namespace {

using nlohmann::json;

// Brackets outside of strings. Text that is no JSON may be counted wrongly: the parser refuses it anyway.
bool too_deep(const std::string& text) {
  uint32_t depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      else if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMostNesting) return true;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return false;
}

[[noreturn]] void wrong(const char* name, const std::string& what) { throw ApiError(400, std::string(name) + " " + what, name); }

bool says_nothing(const json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0.0;
  return value.empty() || (value.is_string() && value.get_ref<const std::string&>().empty());
}

}  // namespace

json parse_object(const std::string& body) {
  if (body.empty()) throw ApiError(400, "the body is empty: a JSON object is expected");
  if (too_deep(body)) throw ApiError(400, "the JSON is nested deeper than " + std::to_string(kMostNesting) + " levels");
  json value;
  try {
    value = json::parse(body);
  } catch (const json::parse_error& problem) {
    throw ApiError(400, "the body is not JSON: it goes wrong at byte " + std::to_string(problem.byte));
  } catch (const json::out_of_range&) {
    throw ApiError(400, "the JSON has a number that is too large");
  }
  if (!value.is_object()) throw ApiError(400, "the body must be a JSON object");
  return value;
}

const json* Fields::find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<double> Fields::number(const char* name, double least, double most) const {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) wrong(name, "must be a number");
  const double number = value->get<double>();
  if (!(number >= least && number <= most)) wrong(name, engine::format("must be from %g to %g", least, most));
  return number;
}

std::optional<int64_t> Fields::whole(const char* name, int64_t least, int64_t most) const {
  const auto given = number(name, static_cast<double>(least), static_cast<double>(most));
  if (!given) return std::nullopt;
  if (*given != std::floor(*given)) wrong(name, "must be a whole number");
  return static_cast<int64_t>(*given);
}

bool Fields::flag(const char* name, bool fallback) const {
  const json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) wrong(name, "must be true or false");
  return value->get<bool>();
}

std::string Fields::text(const char* name, const std::string& fallback) const {
  const json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_string()) wrong(name, "must be a text");
  return value->get<std::string>();
}

std::vector<std::string> Fields::texts(const char* name, size_t most) const {
  const json* value = find(name);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array()) wrong(name, "must be a text or a list of texts");
  if (value->size() > most) wrong(name, "has more than " + std::to_string(most) + " texts");
  std::vector<std::string> out;
  for (const json& one : *value) {
    if (!one.is_string()) wrong(name, "must be a text or a list of texts");
    out.push_back(one.get<std::string>());
  }
  return out;
}

void Fields::not_supported(const char* name) const {
  if (const json* value = find(name); value != nullptr && !says_nothing(*value)) wrong(name, "is not supported by this server");
}

std::string to_text(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

}  // namespace tierkv::serve
