// files.h — the files a command is given, and the program's own. Writing is engine/files.h.
#pragma once

#include <string>

#include "engine/files.h"
#include "engine_names.h"

namespace tierkv::cli {

// A file, or stdin for "-". Throws Cancelled after Ctrl-C.
std::string read_file(const std::string& path);
// Where the program's own files are (scripts): beside the binary, in the installed share folder, or in the source tree.
std::string find_shared(const std::string& relative);

}  // namespace tierkv::cli
