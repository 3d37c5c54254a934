// json_input.h — JSON from strangers: bounded in depth, checked for UTF-8, every field read with its type and its range.
//
// Errors: ApiError, 400, with the name of the field.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tierkv::serve {

// Deeper nesting is refused before anything is built of it.
inline constexpr uint32_t kMostNesting = 64;

// An object. A body that is empty, no JSON, no UTF-8, too deep, or something else than an object is refused.
nlohmann::json parse_object(const std::string& body);

// Reads the fields of an object. A field that is null counts as not there.
class Fields {
 public:
  explicit Fields(const nlohmann::json& object) : object_(object) {}

  bool has(const char* name) const { return find(name) != nullptr; }
  const nlohmann::json* find(const char* name) const;
  std::optional<double> number(const char* name, double least, double most) const;
  std::optional<int64_t> whole(const char* name, int64_t least, int64_t most) const;
  bool flag(const char* name, bool fallback) const;
  std::string text(const char* name, const std::string& fallback = "") const;
  // One text or a list of them, `most` at most.
  std::vector<std::string> texts(const char* name, size_t most) const;
  // Refuses a field that would change the answer and is not known here: anything but null, false, 0, "" and what is empty.
  void not_supported(const char* name) const;

 private:
  const nlohmann::json& object_;
};

// JSON as it goes out: bytes that are no UTF-8 are replaced.
std::string to_text(const nlohmann::json& value);

}  // namespace tierkv::serve
