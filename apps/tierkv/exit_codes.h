// exit_codes.h — what the process says when it ends: 2 is for what the user can change (input, files, options), 1 for everything
// else, 130 for an interruption. A command throws Error (engine/error.h); main() prints its sentence on stderr and exits so.
#pragma once

#include "engine_names.h"

namespace tierkv::cli {

inline constexpr int kRuntimeError = 1;
inline constexpr int kBadInput = 2;
inline constexpr int kInterrupted = 130;

inline int exit_code(const Error& error) {
  switch (error.kind()) {
    case ErrorKind::bad_input: return kBadInput;
    case ErrorKind::cancelled: return kInterrupted;
    case ErrorKind::no_room:
    case ErrorKind::failed: break;
  }
  return kRuntimeError;
}

}  // namespace tierkv::cli
