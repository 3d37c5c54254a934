// files.cc — reading to the end, writing as tierkv/file.h does.
#include "engine/files.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "engine/error.h"
#include "tierkv/file.h"

namespace tierkv::engine {

namespace {

// False: stopped. What is wrong with the file, its reader finds.
bool wait_for_input(int file, const Cancellation* cancel) {
  constexpr int kLookEvery = 100;  // milliseconds: a request between the look and the wait is seen after these
  while (!requested(cancel)) {
    pollfd input{file, POLLIN, 0};
    const int ready = poll(&input, 1, kLookEvery);
    if (ready > 0 || (ready < 0 && errno != EINTR)) return true;
  }
  return false;
}

}  // namespace

ssize_t read_some(int file, std::span<char> to, const Cancellation* cancel) {
  while (wait_for_input(file, cancel)) {
    const ssize_t count = ::read(file, to.data(), to.size());
    if (count >= 0 || (errno != EINTR && errno != EAGAIN)) return count;
  }
  return -1;
}

std::string read_stream(int file, const std::string& name, const Cancellation* cancel) {
  std::string text;
  char block[1 << 16];
  for (;;) {
    const ssize_t count = read_some(file, block, cancel);
    if (requested(cancel)) throw Cancelled();  // whoever stops us may close the pipe as well
    if (count < 0) bad_input("cannot read " + name + ": " + std::strerror(errno));
    if (count == 0) return text;
    text.append(block, static_cast<size_t>(count));
  }
}

std::string read_file(const std::string& path, const Cancellation* cancel) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) bad_input("cannot read " + path + ": " + std::strerror(errno));
  return read_stream(fileno(file.get()), path, cancel);
}

void write_file(const std::string& path, const std::function<void(const Sink&)>& write) {
  const Status status = replace_file(path, [&](const ByteSink& out) {
    Status first;
    write([&](const void* data, size_t size) {
      if (first.ok()) first = out({static_cast<const std::byte*>(data), size});
    });
    return first;
  });
  if (!status.ok()) bad_input(status.message() + " (nothing was kept)");
}

}  // namespace tierkv::engine
