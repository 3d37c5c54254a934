// folder_testing.h — for tests: a folder of a test's own. ctest runs several tests at once, so a fixed name in a shared folder
// would be written by two of them.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <iterator>
#include <string>

namespace tierkv {

// An empty folder that goes with the object.
class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tierkv-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::filesystem::filesystem_error("no folder for a test", name, {});
    path_ = name;
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  size_t count() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
  }

 private:
  std::string path_;
};

}  // namespace tierkv
