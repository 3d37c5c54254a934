// cold_medium.cc — the cold file on a disk: opened, locked, read and written at offsets.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/descriptor.h"
#include "base/status_macros.h"
#include "store/cold_file.h"

namespace tierkv::store {
namespace {

constexpr unsigned char kMagic[16] = {0x89, 'T', 'K', 'V', 'c', 'o', 'l', 'd', '\r', '\n', 0x1A, '\n', 1, 0, 0, 0};

class PosixMedium final : public ColdMedium {
 public:
  // `name`: removed at the end; empty: it has none.
  PosixMedium(Descriptor file, std::string shown, std::string name)
      : file_(std::move(file)), shown_(std::move(shown)), name_(std::move(name)) {}
  ~PosixMedium() override {
    if (!name_.empty() && still_named()) ::unlink(name_.c_str());
  }

  Status write(uint64_t offset, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return system_error("write the cold file", shown_, n < 0 ? errno : ENOSPC);
      offset += static_cast<uint64_t>(n);
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return {};
  }

  Status read(uint64_t offset, std::span<std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = ::pread(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return system_error("read the cold file", shown_, errno);
      if (n == 0) return error(StatusCode::data_loss, "the cold file '", shown_, "' was cut: it ends at ", offset);
      offset += static_cast<uint64_t>(n);
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return {};
  }

  void shrink(uint64_t bytes) noexcept override {
    if (::ftruncate(file_.get(), static_cast<off_t>(bytes)) != 0) return;  // it stays as long as it was
  }

 private:
  // Somebody may have moved it, and put another in its place.
  bool still_named() const {
    struct stat mine = {}, named = {};
    return ::fstat(file_.get(), &mine) == 0 && ::lstat(name_.c_str(), &named) == 0 && mine.st_dev == named.st_dev &&
           mine.st_ino == named.st_ino;
  }

  Descriptor file_;
  const std::string shown_, name_;
};

// A file without a name, so that nothing is left of it whatever happens to the process.
Result<Descriptor> open_in_folder(const std::string& folder) {
#ifdef O_TMPFILE
  if (Descriptor file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)); file.get() >= 0) return file;
#endif
  std::string name = folder + "/.tierkv-cold-XXXXXX";
  Descriptor file(::mkstemp(name.data()));
  if (file.get() < 0) return system_error("make a cold file in", folder, errno);
  ::unlink(name.c_str());
  ::fcntl(file.get(), F_SETFD, FD_CLOEXEC);
  return file;
}

// Ours to empty: a file that is empty or begins as a cold file does, and that no other cache uses.
Status check_ours(const Descriptor& file, const std::string& path) {
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) return system_error("look at", path, errno);
  if (!S_ISREG(info.st_mode))
    return error(StatusCode::invalid_argument, "'", path, "' is ", kind_of_file(info.st_mode), ": cold takes a file or a folder");
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return system_error("lock", path, errno);
    return error(StatusCode::failed_precondition, "the cold file '", path,
                 "' is in use by another cache: give each its own, or name a folder");
  }
  unsigned char begin[sizeof kMagic] = {};
  if (info.st_size == 0) return {};
  const ssize_t n = ::pread(file.get(), begin, sizeof begin, 0);
  if (n != static_cast<ssize_t>(sizeof begin) || std::memcmp(begin, kMagic, sizeof kMagic) != 0) {
    return error(StatusCode::invalid_argument, "'", path, "' is not a cold file of tierkv and would be overwritten: name another");
  }
  return {};
}

Result<Descriptor> open_named(const std::string& path) {
  // Not blocking: opening a FIFO would wait for somebody to read it.
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600));
  if (file.get() < 0) return system_error("open the cold file", path, errno);
  TIERKV_RETURN_IF_ERROR(check_ours(file, path));
  if (::ftruncate(file.get(), 0) != 0) return system_error("empty the cold file", path, errno);
  return file;
}

}  // namespace

Result<std::unique_ptr<ColdMedium>> open_cold_medium(const std::string& path) {
  struct stat info = {};
  const bool folder = ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  TIERKV_ASSIGN_OR_RETURN(Descriptor file, folder ? open_in_folder(path) : open_named(path));
  auto medium = std::make_unique<PosixMedium>(std::move(file), path, folder ? std::string() : path);
  // Its first page, so that the next start knows the file for one of ours.
  std::vector<std::byte> header(ColdFile::kHeaderBytes);
  std::memcpy(header.data(), kMagic, sizeof kMagic);
  TIERKV_RETURN_IF_ERROR(medium->write(0, header));
  return std::unique_ptr<ColdMedium>(std::move(medium));
}

}  // namespace tierkv::store
