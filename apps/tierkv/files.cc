// files.cc — stdin as a file, and where the program's own files are.
#include "files.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "interrupt.h"

namespace tierkv::cli {

std::string read_file(const std::string& path) {
  return path == "-" ? engine::read_stream(STDIN_FILENO, path, cancellation()) : engine::read_file(path, cancellation());
}

std::string find_shared(const std::string& relative) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  std::vector<fs::path> folders;
  if (const char* set = std::getenv("TIERKV_SHARE"); set != nullptr && *set != '\0') folders.emplace_back(set);
  const fs::path binary = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  if (!binary.empty()) {
    folders.push_back(binary.parent_path() / "share" / "tierkv");
    folders.push_back(binary.parent_path().parent_path());  // build/bin in the source tree
  }
#ifdef TIERKV_SHARE_DIR
  folders.emplace_back(TIERKV_SHARE_DIR);
#endif
#ifdef TIERKV_SOURCE_DIR
  folders.emplace_back(TIERKV_SOURCE_DIR);
#endif
  for (const fs::path& folder : folders) {
    if (fs::exists(folder / relative, ignored)) return (folder / relative).string();
  }
  return "";
}

}  // namespace tierkv::cli
