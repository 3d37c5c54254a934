// error.h — how the engine reports that something went wrong: one exception type, with a kind a program can act on and a sentence
// a person can read.
//
// Every function of the engine may throw Error, and nothing else but std::bad_alloc. A command turns the kind into an exit code, a
// server into the status of a response; what() is the sentence for both. A call that throws leaves its objects usable, and its
// header says where they stand.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "tierkv/status.h"

namespace tierkv::engine {

enum class ErrorKind {
  bad_input,  // whoever asked can change it: a file, a text, a setting
  no_room,    // a budget or a context has no place left
  cancelled,  // somebody asked to stop
  failed,     // everything else
};

// "bad_input", "no_room": for JSON.
const char* error_kind_name(ErrorKind kind);

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& sentence) : std::runtime_error(sentence), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// Thrown where work stops because its Cancellation was requested.
class Cancelled : public Error {
 public:
  Cancelled() : Error(ErrorKind::cancelled, "interrupted") {}
};

[[noreturn]] void bad_input(const std::string& sentence);
[[noreturn]] void fail(const std::string& sentence);

// Throws what a failed call of the library means; `what` goes before its message ("cannot read x.tkv").
void check(const Status& status, const std::string& what = "");
template <class T>
T take(Result<T>&& result, const std::string& what = "") {
  check(result.status(), what);
  return std::move(result).value();
}

}  // namespace tierkv::engine
