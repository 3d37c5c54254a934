// error.cc — kinds and their names.
#include "engine/error.h"

namespace tierkv::engine {
namespace {

ErrorKind kind_of(StatusCode code) {
  if (code == StatusCode::internal) return ErrorKind::failed;
  return code == StatusCode::resource_exhausted ? ErrorKind::no_room : ErrorKind::bad_input;
}

}  // namespace

const char* error_kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::bad_input: return "bad_input";
    case ErrorKind::no_room: return "no_room";
    case ErrorKind::cancelled: return "cancelled";
    case ErrorKind::failed: break;
  }
  return "failed";
}

void bad_input(const std::string& sentence) { throw Error(ErrorKind::bad_input, sentence); }
void fail(const std::string& sentence) { throw Error(ErrorKind::failed, sentence); }

void check(const Status& status, const std::string& what) {
  if (status.ok()) return;
  throw Error(kind_of(status.code()), what.empty() ? status.message() : what + ": " + status.message());
}

}  // namespace tierkv::engine
