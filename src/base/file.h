// file.h — whole files in and out, with errors that name the file and what the system said.
//
// write_file_atomic: replace_file() of tierkv/file.h for bytes that are there already.
// read_file: regular files alone. A snapshot from a FIFO would be waited for, and one from /dev/zero would never end.
// read_text_file: FIFOs too, as a shell makes them of `<(...)`: it waits for their writer and stops at max_size.
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
