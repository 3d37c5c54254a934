// files.h — whole files in and out.
//
// Errors: Error, bad_input, with the path and what the operating system said.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "engine/cancellation.h"

namespace tierkv::engine {

std::string read_file(const std::string& path, const Cancellation* cancel = nullptr);
// Up to the end of a file that is open; `name` is for the error.
std::string read_stream(int file, const std::string& name, const Cancellation* cancel = nullptr);
// The next bytes of a file that is open, as read() has it: 0 at its end, less for an error (errno), and for a request to stop,
// which ends the wait for them.
ssize_t read_some(int file, std::span<char> to, const Cancellation* cancel);

// Writes to a temporary file beside `path`, then renames: a reader sees the old file or the whole new one, and a failure (a full
// disk) leaves nothing behind. `write` gets a function that appends bytes.
using Sink = std::function<void(const void* data, size_t size)>;
void write_file(const std::string& path, const std::function<void(const Sink&)>& write);

}  // namespace tierkv::engine
