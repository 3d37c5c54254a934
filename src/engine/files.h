// files.h — whole files in and out.
//
// Errors: Error, bad_input, with the path and what the operating system said.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "engine/cancellation.h"

namespace tierkv::engine {

std::string read_file(const std::string& path, const Cancellation* cancel = nullptr);
// Up to the end of a file that is open; `name` is for the error.
std::string read_stream(int file, const std::string& name, const Cancellation* cancel = nullptr);
// Until there is something to read from a file that is open, or it has ended. False: stopped. Whoever reads without it is not
// stopped by Ctrl-C.
bool wait_for_input(int file, const Cancellation* cancel);

// Writes to a temporary file beside `path`, then renames: a reader sees the old file or the whole new one, and a failure (a full
// disk) leaves nothing behind. `write` gets a function that appends bytes.
using Sink = std::function<void(const void* data, size_t size)>;
void write_file(const std::string& path, const std::function<void(const Sink&)>& write);

}  // namespace tierkv::engine
