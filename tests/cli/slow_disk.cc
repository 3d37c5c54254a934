// slow_disk.cc — preloaded into a program, it makes a disk slow: opening a chunk of the prefix store for reading takes as many
// seconds as the file says that TIERKV_SLOW_DISK names. No such file: the disk is as it is.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

void wait_for_the_disk(const char* path, int flags) {
  const char* const named = std::getenv("TIERKV_SLOW_DISK");
  if (!named || (flags & O_ACCMODE) != O_RDONLY || (!std::strstr(path, ".run") && !std::strstr(path, ".rest"))) return;
  std::FILE* const file = std::fopen(named, "r");
  if (!file) return;
  unsigned seconds = 0;
  if (std::fscanf(file, "%u", &seconds) != 1) seconds = 0;
  std::fclose(file);
  sleep(seconds);
}

int really_open(const char* name, const char* path, int flags, mode_t mode) {
  wait_for_the_disk(path, flags);
  using Open = int (*)(const char*, int, ...);
  return reinterpret_cast<Open>(dlsym(RTLD_NEXT, name))(path, flags, mode);
}

mode_t mode_of(int flags, va_list& more) { return (flags & O_CREAT) ? va_arg(more, mode_t) : 0; }

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return really_open("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return really_open("open64", path, flags, mode);
}

}  // extern "C"
