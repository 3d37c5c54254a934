// replace_file.cc — a file is replaced whole or not at all: see tierkv/file.h.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <memory>
#include <string_view>

#include "base/descriptor.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "tierkv/file.h"

namespace tierkv {
namespace {

constexpr std::string_view kMark = ".tmp.";
constexpr size_t kDigits = 16;
constexpr std::string_view kHex = "0123456789abcdef";
constexpr int kMostLinks = 40;  // as many as Linux follows
constexpr int kMostNames = 100;

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Where the bytes of `path` live or will live: the end of its links, there or not.
Result<std::string> follow_links(const std::string& path) {
  std::string at = path;
  for (int i = 0; i < kMostLinks; ++i) {
    char target[PATH_MAX];
    const ssize_t n = ::readlink(at.c_str(), target, sizeof target);
    if (n < 0) return at;  // no link, or nothing at all
    const std::string to(target, static_cast<size_t>(n));
    at = to.starts_with('/') ? to : directory_of(at) + "/" + to;
  }
  return system_error("follow the links of", path, ELOOP);
}

int write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), std::min<size_t>(bytes.size(), size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return 0;
}

int sync_directory(const std::string& directory) {
  Descriptor fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return errno;
  // Some file systems cannot sync a directory and say so with EINVAL; the rename is then as durable as they make it.
  return ::fsync(fd.get()) == 0 || errno == EINVAL ? 0 : errno;
}

// Process numbers and counters repeat: in a container every writer is process 1.
std::string random_digits() {
  static std::atomic<uint64_t> counter{0};
  uint64_t bits = 0;
  if (::getrandom(&bits, sizeof bits, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof bits)) {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    bits =
        (static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec) + ++counter) * 0x9E3779B97F4A7C15ull;
  }
  std::string out;
  for (size_t i = 0; i < kDigits; ++i) out += kHex[bits >> (4 * i) & 15u];
  return out;
}

bool lock(int fd, int how) {
  while (::flock(fd, how) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

// Removes the temporary files of `target` that nobody writes any more. A wish: whatever fails is left for the next time.
void remove_leftovers(const std::string& target) {
  const std::string prefix = name_of(target) + std::string(kMark);
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(directory_of(target).c_str()), ::closedir);
  if (!directory) return;
  const int at = ::dirfd(directory.get());
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string_view name(entry->d_name);
    if (!name.starts_with(prefix) || name.size() != prefix.size() + kDigits) continue;
    if (name.find_first_not_of(kHex, prefix.size()) != std::string_view::npos) continue;
    const Descriptor fd(::openat(at, entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat info {};
    if (fd.get() < 0 || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    // The name is removed with the lock held, so that a writer who gets it next sees that its file has no name.
    if (lock(fd.get(), LOCK_EX | LOCK_NB)) ::unlinkat(at, entry->d_name, 0);
  }
}

// A temporary file beside the target, locked; its name goes with it unless it was renamed.
struct Temporary {
  std::string name;
  Descriptor fd;
  Descriptor held;  // the same open file: keeps the lock when fd is closed to see whether that goes well

  Temporary() = default;
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (!name.empty()) ::unlink(name.c_str());
  }

  // 0 or errno.
  int create(const std::string& target, mode_t mode) {
    for (int i = 0; i < kMostNames; ++i) {
      std::string wanted = target + std::string(kMark) + random_digits();
      Descriptor made(::open(wanted.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
      if (made.get() < 0 && errno == EEXIST) continue;
      if (made.get() < 0) return errno;
      name = std::move(wanted);
      (void)lock(made.get(), LOCK_EX);  // a file system without locks has leftovers that stay
      struct stat info {};
      if (::fstat(made.get(), &info) != 0) return errno;
      if (info.st_nlink == 0) {  // somebody took it for a leftover before it was locked
        name.clear();
        continue;
      }
      held = Descriptor(::dup(made.get()));
      if (held.get() < 0) return errno;
      fd = std::move(made);
      return 0;
    }
    return EEXIST;
  }
};

// Owner first: changing it may clear permission bits.
int keep_attributes(int fd, const struct stat& old) {
  struct stat made {};
  if (::fstat(fd, &made) != 0) return errno;
  if ((made.st_uid != old.st_uid || made.st_gid != old.st_gid) && ::fchown(fd, old.st_uid, old.st_gid) != 0) return errno;
  return ::fchmod(fd, old.st_mode & 07777) == 0 ? 0 : errno;
}

}  // namespace

Status replace_file(const std::string& path, const std::function<Status(const ByteSink&)>& write) {
  if (path.empty()) return error(StatusCode::invalid_argument, "cannot write a file without a name");
  if (path.find('\0') != std::string::npos) return error(StatusCode::invalid_argument, "a file's name cannot hold a zero byte");
  struct stat old {};
  const bool existed = ::stat(path.c_str(), &old) == 0;
  if (existed && !S_ISREG(old.st_mode)) {
    return error(StatusCode::io_error, "cannot write ", quote(path), ": it is ", kind_of_file(old.st_mode), ", not a regular file");
  }
  TIERKV_ASSIGN_OR_RETURN(const std::string target, follow_links(path));
  remove_leftovers(target);
  Temporary temporary;
  if (const int code = temporary.create(target, existed ? 0600 : 0666)) {
    return system_error("create a temporary file beside", path, code);
  }
  const int fd = temporary.fd.get();
  if (existed) {
    if (const int code = keep_attributes(fd, old)) return system_error("keep the owner and the permissions of", path, code);
  }
  TIERKV_RETURN_IF_ERROR(write([&](std::span<const std::byte> bytes) -> Status {
    const int code = write_all(fd, bytes);
    return code ? system_error("write", path, code) : Status();
  }));
  if (::fsync(fd) != 0) return system_error("flush", path, errno);
  if (const int code = temporary.fd.close()) return system_error("close", path, code);
  const std::string directory = directory_of(target);
  if (::rename(temporary.name.c_str(), target.c_str()) != 0) return system_error("replace", path, errno);
  temporary.name.clear();
  if (const int code = sync_directory(directory)) return system_error("flush the directory of", path, code);
  return {};
}

Status write_file_atomic(const std::string& path, std::span<const std::byte> bytes) {
  return replace_file(path, [&](const ByteSink& sink) { return sink(bytes); });
}

Status write_file_atomic(const std::string& path, std::string_view text) {
  return write_file_atomic(path, std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace tierkv
