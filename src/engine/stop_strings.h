// stop_strings.h — ends a text where one of several strings begins, while the text still comes in pieces.
//
// What might be the beginning of such a string is held back until the next piece decides; nothing of the string is ever given out.
//
// Threads: one at a time.
#pragma once

#include <string>
#include <vector>

namespace tierkv::engine {

class StopStrings {
 public:
  // Empty strings count as none.
  explicit StopStrings(const std::vector<std::string>& strings);

  // What may be shown now. After hit() nothing more.
  std::string add(const std::string& piece);
  // The text ends here without a hit: what had been held back.
  std::string rest();
  bool hit() const { return hit_; }

 private:
  size_t held_back() const;  // bytes at the end that may begin a string

  std::vector<std::string> strings_;
  std::string text_;  // not shown yet
  bool hit_ = false;
};

}  // namespace tierkv::engine
