// files.cc — reading to the end, writing as tierkv/file.h does.
#include "engine/files.h"

#include <cerrno>
#include <cstring>
#include <memory>

#include "engine/error.h"
#include "tierkv/file.h"

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
