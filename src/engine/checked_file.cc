// checked_file.cc — XXH3 over a file, and the line that remembers its sha256.
#include "engine/checked_file.h"

#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <vector>

#include "engine/error.h"
#include "engine/text.h"
#include "tierkv/file.h"

namespace tierkv::engine {
namespace {

// What FILE.checked holds when the file as it is now was found good; empty when there is no file.
std::string line_of(const std::string& path, const std::string& digest) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "";
  const int64_t changed = int64_t{info.st_ctim.tv_sec} * 1000000000 + info.st_ctim.tv_nsec;
  return digest + " " + std::to_string(info.st_size) + " " + std::to_string(changed) + "\n";
}

std::string xxh3_of(const std::string& path, const Cancellation* cancel) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) bad_input("cannot read " + path + ": " + std::strerror(errno));
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> sum(XXH3_createState(), XXH3_freeState);
  if (!sum) throw std::bad_alloc();
  XXH3_128bits_reset(sum.get());
  std::vector<unsigned char> block(1 << 20);
  size_t count;
  while ((count = std::fread(block.data(), 1, block.size(), file.get())) > 0) {
    XXH3_128bits_update(sum.get(), block.data(), count);
    if (requested(cancel)) throw Cancelled();
  }
  if (std::ferror(file.get())) bad_input("cannot read " + path + ": " + std::strerror(errno));
  const XXH128_hash_t hash = XXH3_128bits_digest(sum.get());
  return format("%016llx%016llx", static_cast<unsigned long long>(hash.high64), static_cast<unsigned long long>(hash.low64));
}

}  // namespace

bool is_unchanged(const std::string& path, const KnownDigests& expected, const Cancellation* cancel) {
  const std::string mark = path + ".checked";
  const std::string line = line_of(path, expected.sha256);
  {
    std::ifstream remembered(mark);
    std::string found;
    if (std::getline(remembered, found) && found + "\n" == line) return true;
  }
  if (xxh3_of(path, cancel) != expected.xxh3) return false;
  // The file as it was before it was read: one that changed meanwhile is looked at again the next time.
  (void)replace_file(mark, [&](const ByteSink& sink) { return sink(std::as_bytes(std::span(line.data(), line.size()))); }).ok();
  return true;
}

}  // namespace tierkv::engine
