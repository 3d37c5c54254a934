// file.h — whole files in and out, with errors that name the file and what the system said.
//
// write_file_atomic: writes a temporary file beside `path`, fsyncs it, renames it over `path` and fsyncs the directory, so that a
// crash at any point leaves the old file or the new one, never a mixture. A failure removes the temporary file and leaves the old
// one. A file that exists keeps its permission bits; a new one gets 0666 less the umask. A symbolic link is followed, not replaced.
// Threads: safe; of two writers to one path the last rename wins, whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tierkv/status.h"

namespace tierkv {

[[nodiscard]] Status write_file_atomic(const std::string& path, std::span<const std::byte> bytes);
[[nodiscard]] Status write_file_atomic(const std::string& path, std::string_view text);

// not_found when there is no such file, out_of_range when it holds more than max_size bytes, io_error otherwise.
[[nodiscard]] Result<std::vector<std::byte>> read_file(const std::string& path, uint64_t max_size);
// `size` bytes from `offset` on, fewer where the file ends before that.
[[nodiscard]] Result<std::vector<std::byte>> read_file_part(const std::string& path, uint64_t offset, uint64_t size);
[[nodiscard]] Result<std::string> read_text_file(const std::string& path, uint64_t max_size);

}  // namespace tierkv
