#include "engine/stop_strings.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace tierkv::engine {

StopStrings::StopStrings(const std::vector<std::string>& strings) {
  for (const std::string& one : strings) {
    if (!one.empty()) strings_.push_back(one);
  }
}

size_t StopStrings::held_back() const {
  const std::string_view text = text_;
  size_t most = 0;
  for (const std::string& one : strings_) {
    for (size_t size = std::min(one.size() - 1, text.size()); size > most; --size) {
      if (text.ends_with(std::string_view(one).substr(0, size))) most = size;
    }
  }
  return most;
}

std::string StopStrings::add(const std::string& piece) {
  if (hit_) return "";
  text_ += piece;
  size_t first = std::string::npos;
  for (const std::string& one : strings_) first = std::min(first, text_.find(one));
  hit_ = first != std::string::npos;
  const size_t shown = hit_ ? first : text_.size() - held_back();
  std::string out = text_.substr(0, shown);
  text_.erase(0, hit_ ? text_.size() : shown);
  return out;
}

std::string StopStrings::rest() { return std::exchange(text_, ""); }

}  // namespace tierkv::engine
