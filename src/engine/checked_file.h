// checked_file.h — a downloaded file is what it was, by its sha256, looked at once.
//
// Beside a file that was found good lies FILE.checked, one line: its sha256, its size and the time of its last change (st_ctime in
// nanoseconds, which no program can set back). While the three still fit, the file is not read again. tools/fetch.py writes and
// reads the same line. A folder that cannot be written to means reading the file every time.
#pragma once

#include <string>

#include "engine/cancellation.h"

namespace tierkv::engine {

// Lower-case digits. Throws Error when the file cannot be read.
std::string sha256_of(const std::string& path, const Cancellation* cancel = nullptr);

// Whether the file's sha256 is `expected`.
bool is_unchanged(const std::string& path, const std::string& expected, const Cancellation* cancel = nullptr);

}  // namespace tierkv::engine
