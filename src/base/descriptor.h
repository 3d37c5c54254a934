// descriptor.h — an open file that closes itself, and what the system said when a call on one failed.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "tierkv/status.h"

namespace tierkv {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  // 0 or errno: a write error may show only here.
  int close() {
    const int fd = std::exchange(fd_, -1);
    return ::close(fd) == 0 || errno == EINTR ? 0 : errno;
  }

 private:
  int fd_;
};

// "cannot open 'a.tkv': No such file or directory"; not_found for that one, io_error for the others.
Status system_error(const char* what, const std::string& path, int code);
// "a directory", "a device", ...
const char* kind_of_file(unsigned mode);

}  // namespace tierkv
