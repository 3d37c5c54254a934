// utf8.h — text that comes in pieces which may end in the middle of a character.
#pragma once

#include <string>

namespace tierkv::engine {

// Gives back what is complete, and holds the rest until its other bytes come. Bytes that are no UTF-8 pass as they are.
class Utf8Joiner {
 public:
  std::string add(const std::string& piece);
  // What is still held, at the end of the text.
  std::string rest();

 private:
  std::string held_;
};

}  // namespace tierkv::engine
