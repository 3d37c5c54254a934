// utf8.cc — where the last whole character ends.
#include "engine/utf8.h"

#include <utility>

namespace tierkv::engine {

std::string Utf8Joiner::add(const std::string& piece) {
  held_ += piece;
  // The last character is complete when as many bytes follow its first one as that says.
  size_t start = held_.size();
  while (start > 0 && held_.size() - start < 4 && (static_cast<unsigned char>(held_[start - 1]) & 0xC0) == 0x80) --start;
  if (start == 0) return held_.size() >= 4 ? std::exchange(held_, "") : "";
  const unsigned char lead = static_cast<unsigned char>(held_[start - 1]);
  const size_t needed = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
  if (held_.size() - (start - 1) >= needed) return std::exchange(held_, "");
  const std::string ready = held_.substr(0, start - 1);
  held_.erase(0, start - 1);
  return ready;
}

std::string Utf8Joiner::rest() { return std::exchange(held_, ""); }

}  // namespace tierkv::engine
