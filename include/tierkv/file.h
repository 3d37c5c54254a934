// file.h — writing a file whole or not at all, as the library does with snapshots and thresholds, for programs that keep files
// beside them.
//
// The bytes go to a temporary file beside `path` (PATH.tmp.<16 random digits>), which is flushed and renamed over it, and the
// directory is flushed: a crash at any point leaves the old file or the new one, never a mixture.
//
// What may be written: a path where nothing is yet, or a regular file, which keeps its owner, group and permission bits; a new one
//           gets 0666 less the umask. Symbolic links are followed, those to nothing yet too. Anything else (a directory, a device,
//           a FIFO, a socket) is io_error and stays what it is, and so is a file whose owner cannot be kept.
// Failures: the old file is as it was, and no temporary file is left; only when the directory cannot be flushed, which the message
//           says, the new file is in its place already. What a killed writer left behind is removed by the next one to
//           the same path: a temporary file is locked (flock) for as long as somebody writes it.
// Threads:  safe; of two writers to one path, in one process or two, the last rename wins, whole.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "tierkv/status.h"

namespace tierkv {

using ByteSink = std::function<Status(std::span<const std::byte>)>;

// `write` is called once and hands the bytes to the sink in as many pieces as it likes. An error that it returns, of the sink's or
// its own, is the result; what it throws passes through. Either way nothing was written.
Status replace_file(const std::string& path, const std::function<Status(const ByteSink&)>& write);

}  // namespace tierkv
