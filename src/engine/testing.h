// testing.h — for tests of the engine: tiny models (tools/tiny_gguf.py), the kind of an error.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>

#include "base/folder_testing.h"
#include "engine/error.h"

namespace tierkv::engine {

inline std::string tiny_model(const std::string& kind) { return std::string(TIERKV_TINY_MODELS) + "/" + kind + ".gguf"; }

// The kind of Error that a call throws, or nothing when it throws none. `sentence` gets what it says.
inline std::optional<ErrorKind> kind_thrown(const std::function<void()>& call, std::string* sentence = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (sentence != nullptr) *sentence = error.what();
    return error.kind();
  }
  return std::nullopt;
}

}  // namespace tierkv::engine
