// file.cc — reading files, whole or in part.
#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/descriptor.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace tierkv {

Status system_error(const char* what, const std::string& path, int code) {
  return error(code == ENOENT ? StatusCode::not_found : StatusCode::io_error, "cannot ", what, " ", quote(path), ": ",
               std::generic_category().message(code));
}

const char* kind_of_file(unsigned mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "something else";
}

namespace {

enum class Kinds { regular, any };

// Open for reading. A FIFO that may not be read is not waited for either.
Result<Descriptor> open_file(const std::string& path, Kinds kinds, struct stat& info) {
  if (path.find('\0') != std::string::npos) return error(StatusCode::invalid_argument, "a file's name cannot hold a zero byte");
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | (kinds == Kinds::regular ? O_NONBLOCK : 0)));
  if (fd.get() < 0) return system_error("open", path, errno);
  if (::fstat(fd.get(), &info) != 0) return system_error("inspect", path, errno);
  if (S_ISDIR(info.st_mode)) return system_error("read", path, EISDIR);
  if (kinds == Kinds::regular && !S_ISREG(info.st_mode)) {
    return error(StatusCode::io_error, "cannot read ", quote(path), ": it is ", kind_of_file(info.st_mode), ", not a regular file");
  }
  return fd;
}

template <class Bytes>
Result<Bytes> read_whole(const std::string& path, uint64_t max_size, Kinds kinds) {
  struct stat info {};
  TIERKV_ASSIGN_OR_RETURN(const Descriptor fd, open_file(path, kinds, info));
  const auto too_large = [&] {
    return error(StatusCode::out_of_range, quote(path), " is larger than the ", max_size, " bytes allowed for it");
  };
  if (S_ISREG(info.st_mode) && static_cast<uint64_t>(info.st_size) > max_size) return too_large();

  Bytes out;
  // One byte more than the size shows the end of a file that did not grow with one read.
  out.resize(
      static_cast<size_t>(std::min<uint64_t>(S_ISREG(info.st_mode) ? static_cast<uint64_t>(info.st_size) : 65535u, max_size)) + 1);
  size_t used = 0;
  while (true) {
    const ssize_t n = ::read(fd.get(), out.data() + used, std::min<size_t>(out.size() - used, size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("read", path, errno);
    if (n == 0) break;
    used += static_cast<size_t>(n);
    if (used > max_size) return too_large();
    if (used == out.size()) out.resize(static_cast<size_t>(std::min<uint64_t>(2 * uint64_t{used}, max_size)) + 1);
  }
  out.resize(used);
  return out;
}

}  // namespace

Result<std::vector<std::byte>> read_file(const std::string& path, uint64_t max_size) {
  return read_whole<std::vector<std::byte>>(path, max_size, Kinds::regular);
}

Result<std::string> read_text_file(const std::string& path, uint64_t max_size) {
  return read_whole<std::string>(path, max_size, Kinds::any);
}

Result<std::vector<std::byte>> read_file_part(const std::string& path, uint64_t offset, uint64_t size) {
  struct stat info {};
  TIERKV_ASSIGN_OR_RETURN(const Descriptor fd, open_file(path, Kinds::regular, info));
  const auto end = static_cast<uint64_t>(info.st_size);
  std::vector<std::byte> out(static_cast<size_t>(std::min(size, end - std::min(offset, end))));
  for (size_t used = 0; used < out.size();) {
    const ssize_t n = ::pread(fd.get(), out.data() + used, std::min<size_t>(out.size() - used, size_t{1} << 30),
                              static_cast<off_t>(offset + used));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("read", path, errno);
    if (n == 0) out.resize(used);
    used += static_cast<size_t>(n);
  }
  return out;
}

}  // namespace tierkv
