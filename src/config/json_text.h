// json_text.h — JSON written straight into a string, two spaces a level.
//
// A tree of nlohmann's values frees itself with memory that it asks for, and ends the process when there is none; a string does
// not. One value at a time is given to nlohmann, for its numbers and its escapes: a single one is freed without asking. REQUIRES:
// begin() and end() match; the root is an object. Throws std::bad_alloc.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace tierkv::config {

class JsonText {
 public:
  JsonText() { open('{'); }

  // A member of an object; in an array the key is left out.
  template <class Scalar>
  void add(std::string_view key, const Scalar& value) {
    name(key);
    text_ += of(value);
  }
  void begin_object(std::string_view key) {
    name(key);
    open('{');
  }
  void begin_array(std::string_view key) {
    name(key);
    open('[');
  }
  void end() {
    const bool empty = first_;
    const char closing = open_.back() == '{' ? '}' : ']';
    open_.pop_back();
    if (!empty) new_line();
    text_ += closing;
    first_ = false;
  }
  // The whole text, with a line end.
  std::string finish() {
    end();
    return std::move(text_) + "\n";
  }

 private:
  template <class Scalar>
  static std::string of(const Scalar& value) {
    // A name that is not UTF-8 can only come from code, and validate() refuses it; here it must not throw.
    return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  void open(char bracket) {
    text_ += bracket;
    open_ += bracket;
    first_ = true;
  }
  void name(std::string_view key) {
    if (!first_) text_ += ',';
    new_line();
    if (open_.back() == '{') text_ += of(std::string(key)) + ": ";
    first_ = false;
  }
  void new_line() {
    text_ += '\n';
    text_.append(2 * open_.size(), ' ');
  }

  std::string text_;
  std::string open_;  // the brackets around here
  bool first_ = true;
};

}  // namespace tierkv::config
