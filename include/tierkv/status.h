// status.h — how tierkv reports that something went wrong: a code a program can act on and a sentence a person can.
//
// Every fallible call returns Status or Result<T>. The library never prints, never aborts, and throws nothing across its API but
// std::bad_alloc, from the calls that return a text or a list by value. A lack of memory anywhere else is resource_exhausted.
// A failed call leaves the cache exactly as it was, unless the call's own comment says what may have changed.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace tierkv {

// The numbers are part of the C API (tierkv/c.h) and never change meaning.
enum class StatusCode : int {
  ok = 0,
  invalid_argument = 1,     // the caller passed something that can never work (shape, NaN, unknown key)
  not_found = 2,            // unknown sequence, evicted position, missing file
  out_of_range = 3,         // a position or layer past the end
  resource_exhausted = 4,   // byte budget or max_seq_len reached and nothing may be evicted, or the machine's memory
  failed_precondition = 5,  // right call, wrong moment (a window too short to roll back)
  data_loss = 6,            // checksum mismatch, truncated or damaged bytes
  unsupported = 7,          // a newer file version, a codec this build does not have
  io_error = 8,             // the operating system said no
  internal = 9,             // a bug in tierkv
};

const char* status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::ok; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // "invalid_argument: head_dim 33 is not supported…"
  std::string to_string() const;

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

// A value or the reason there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  // REQUIRES: ok()
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace tierkv
