// checked_file.h — a downloaded file is what it was, looked at once.
//
// tools/fetch.py checks the sha256 of what it downloads. Beside a file that was found good lies FILE.checked, one line: its sha256,
// its size and the time of its last change (st_ctime in nanoseconds, which no program can set back). While the three still fit, the
// file is not read again. Otherwise it is read here and its XXH3 compared, which notices damage and other files as well as sha256
// does; against a forger neither helps, who could write the line too. A folder that cannot be written to means reading the file
// every time.
#pragma once

#include <string>

#include "engine/cancellation.h"

namespace tierkv::engine {

// What a file must be, in lower-case hexadecimal digits. Both are of the same file.
struct KnownDigests {
  const char* sha256;  // as in tools/fetch.py: goes into FILE.checked
  const char* xxh3;    // of 128 bits, as `xxhsum -H2` prints it
};

// Throws Error when the file cannot be read.
bool is_unchanged(const std::string& path, const KnownDigests& expected, const Cancellation* cancel = nullptr);

}  // namespace tierkv::engine
