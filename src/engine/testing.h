// testing.h — for tests of the engine: tiny models (tools/tiny_gguf.py), a folder of a test's own, the kind of an error.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

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

// An empty folder that goes with the object.
class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tierkv-engine-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  size_t count() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
  }

 private:
  std::string path_;
};

}  // namespace tierkv::engine
