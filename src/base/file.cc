#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "base/status_macros.h"
#include "base/text.h"

namespace tierkv {
namespace {

Status system_error(const char* what, const std::string& path, int code) {
  return error(code == ENOENT ? StatusCode::not_found : StatusCode::io_error, "cannot ", what, " ", quote(path), ": ",
               std::generic_category().message(code));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  // 0 or errno: a write error may show only here.
  int close() {
    const int fd = std::exchange(fd_, -1);
    return ::close(fd) == 0 || errno == EINTR ? 0 : errno;
  }

 private:
  int fd_;
};

int write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), std::min<size_t>(bytes.size(), size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return 0;
}

// Where the bytes of `path` really live, so that a link's target is replaced and not the link.
std::string resolved(const std::string& path) {
  char* real = ::realpath(path.c_str(), nullptr);
  if (real == nullptr) return path;
  std::string out(real);
  std::free(real);
  return out;
}

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

int sync_directory(const std::string& directory) {
  Descriptor fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return errno;
  // Some file systems cannot sync a directory and say so with EINVAL; the rename is then as durable as they make it.
  return ::fsync(fd.get()) == 0 || errno == EINVAL ? 0 : errno;
}

template <class Bytes>
Result<Bytes> read_whole(const std::string& path, uint64_t max_size) {
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return system_error("open", path, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return system_error("inspect", path, errno);
  if (S_ISDIR(info.st_mode)) return system_error("read", path, EISDIR);
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

Status write_file_atomic(const std::string& path, std::span<const std::byte> bytes) {
  if (path.empty()) return error(StatusCode::invalid_argument, "cannot write a file without a name");
  static std::atomic<uint64_t> counter{0};
  const std::string target = resolved(path);
  const std::string temporary = target + ".tmp." + std::to_string(::getpid()) + "." + std::to_string(counter.fetch_add(1));

  struct stat old {};
  const bool existed = ::stat(target.c_str(), &old) == 0;
  if (existed && S_ISDIR(old.st_mode)) return system_error("write", path, EISDIR);
  Descriptor fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, existed ? 0600 : 0666));
  if (fd.get() < 0) return system_error("create a temporary file beside", path, errno);
  const auto fail = [&](const char* what, int code) {
    ::unlink(temporary.c_str());
    return system_error(what, path, code);
  };
  if (existed && ::fchmod(fd.get(), old.st_mode & 07777) != 0) return fail("set the permissions of", errno);
  if (const int code = write_all(fd.get(), bytes)) return fail("write", code);
  if (::fsync(fd.get()) != 0) return fail("flush", errno);
  if (const int code = fd.close()) return fail("close", code);
  if (::rename(temporary.c_str(), target.c_str()) != 0) return fail("replace", errno);
  if (const int code = sync_directory(directory_of(target))) return system_error("flush the directory of", path, code);
  return {};
}

Status write_file_atomic(const std::string& path, std::string_view text) {
  return write_file_atomic(path, std::as_bytes(std::span(text.data(), text.size())));
}

Result<std::vector<std::byte>> read_file(const std::string& path, uint64_t max_size) {
  return read_whole<std::vector<std::byte>>(path, max_size);
}

Result<std::vector<std::byte>> read_file_part(const std::string& path, uint64_t offset, uint64_t size) {
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return system_error("open", path, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return system_error("inspect", path, errno);
  if (S_ISDIR(info.st_mode)) return system_error("read", path, EISDIR);
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

Result<std::string> read_text_file(const std::string& path, uint64_t max_size) { return read_whole<std::string>(path, max_size); }

}  // namespace tierkv
