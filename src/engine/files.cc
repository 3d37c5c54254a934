// files.cc — reading to the end, writing under a temporary name.
#include "engine/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "engine/error.h"

namespace tierkv::engine {

std::string read_stream(FILE* stream, const std::string& name, const Cancellation* cancel) {
  std::string text;
  char block[1 << 16];
  size_t count;
  errno = 0;
  while ((count = std::fread(block, 1, sizeof(block), stream)) > 0) text.append(block, count);
  const int problem = std::ferror(stream) ? errno : 0;
  if (requested(cancel)) throw Cancelled();
  if (problem != 0) bad_input("cannot read " + name + ": " + std::strerror(problem));
  return text;
}

std::string read_file(const std::string& path, const Cancellation* cancel) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) bad_input("cannot read " + path + ": " + std::strerror(errno));
  return read_stream(file.get(), path, cancel);
}

void write_file(const std::string& path, const std::function<void(const Sink&)>& write) {
  std::string partial = path + ".partial-XXXXXX";
  const int descriptor = mkstemp(partial.data());
  if (descriptor < 0) bad_input("cannot write " + path + ": " + std::strerror(errno));
  auto stop = [&](int problem) {
    close(descriptor);
    unlink(partial.c_str());
    bad_input("cannot write " + path + ": " + std::strerror(problem) + " (nothing was kept)");
  };
  try {
    write([&](const void* data, size_t size) {
      const char* at = static_cast<const char*>(data);
      while (size > 0) {
        const ssize_t written = ::write(descriptor, at, size);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) throw errno;
        at += written;
        size -= static_cast<size_t>(written);
      }
    });
  } catch (int problem) {
    stop(problem);
  } catch (...) {
    close(descriptor);
    unlink(partial.c_str());
    throw;
  }
  const mode_t mask = umask(0);
  umask(mask);
  (void)!fchmod(descriptor, 0666 & ~mask);
  if (fsync(descriptor) != 0 && errno != EINVAL && errno != EROFS) stop(errno);
  if (close(descriptor) != 0 || rename(partial.c_str(), path.c_str()) != 0) {
    const int problem = errno;
    unlink(partial.c_str());
    bad_input("cannot write " + path + ": " + std::strerror(problem) + " (nothing was kept)");
  }
}

}  // namespace tierkv::engine
