#include "serve/store_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>

#include "tierkv/file.h"

namespace tierkv::serve {
namespace {

constexpr uint64_t kLargestFile = uint64_t{1} << 32;

Status io_error(const std::string& what, const std::string& path) {
  return Status(StatusCode::io_error, what + " " + path + ": " + std::strerror(errno));
}

int64_t time_now() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

struct File {
  explicit File(int descriptor) : fd(descriptor) {}
  ~File() {
    if (fd >= 0) ::close(fd);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const int fd;
};

}  // namespace

void StoreFolder::insert(const Entry& entry) {
  const auto [at, fresh] = index_.try_emplace(entry.name.key, entry);
  if (fresh) {
    children_.emplace(entry.name.parent, entry.name.key);
    bytes_ += entry.bytes;
    return;
  }
  bytes_ += entry.bytes - at->second.bytes;
  at->second = entry;
}

// What a killed writer left: nobody holds its lock (tierkv/file.h).
void StoreFolder::sweep(const std::string& leftover) const {
  const std::string path = folder_ + "/" + leftover;
  const File file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.fd >= 0 && ::flock(file.fd, LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
}

Status StoreFolder::scan() {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) return Status(StatusCode::io_error, "cannot make the folder " + folder_ + ": " + error.message());
  ::chmod(folder_.c_str(), S_IRWXU);  // conversations are nobody else's
  std::vector<Entry> found;
  for (std::filesystem::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    const std::string file = at->path().filename().string();
    if (const auto name = parse_chunk_name(file)) {
      struct stat info {};
      if (::lstat(at->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
      found.push_back(
          {*name, static_cast<uint64_t>(info.st_size), int64_t{info.st_mtim.tv_sec} * 1000000000 + info.st_mtim.tv_nsec});
    } else if (const auto dot = file.find(".tmp."); dot != std::string::npos && parse_chunk_name(file.substr(0, dot))) {
      sweep(file);
    }
  }
  if (error) return Status(StatusCode::io_error, "cannot read the folder " + folder_ + ": " + error.message());
  {
    const std::lock_guard lock(mutex_);
    index_.clear();
    children_.clear();
    bytes_ = 0;
    for (const Entry& entry : found) insert(entry);
  }
  make_room(0);
  return {};
}

bool StoreFolder::has(const ChunkKey& key) const {
  const std::lock_guard lock(mutex_);
  return index_.contains(key);
}

std::vector<ChunkName> StoreFolder::children(const ChunkKey& parent) const {
  std::vector<ChunkName> out;
  {
    const std::lock_guard lock(mutex_);
    const auto [from, to] = children_.equal_range(parent);
    for (auto at = from; at != to; ++at) out.push_back(index_.at(at->second).name);
  }
  std::sort(out.begin(), out.end(), [](const ChunkName& a, const ChunkName& b) {
    return std::pair(a.tokens, a.kind == ChunkKind::rest) > std::pair(b.tokens, b.kind == ChunkKind::rest);
  });
  return out;
}

// Takes them out of the index. REQUIRES: the lock is held.
std::vector<ChunkName> StoreFolder::pick_victims(uint64_t room) {
  std::vector<ChunkName> victims;
  if (bytes_ + room <= most_) return victims;
  std::set<std::pair<int64_t, ChunkKey>> ends;  // chunks that nothing goes on from
  for (const auto& [key, entry] : index_) {
    if (!children_.contains(key)) ends.emplace(entry.used, key);
  }
  while (bytes_ + room > most_ && !ends.empty()) {
    const ChunkKey key = ends.begin()->second;
    ends.erase(ends.begin());
    const Entry entry = index_.at(key);
    index_.erase(key);
    bytes_ -= entry.bytes;
    const auto [from, to] = children_.equal_range(entry.name.parent);
    children_.erase(std::find_if(from, to, [&](const auto& link) { return link.second == key; }));
    if (!children_.contains(entry.name.parent)) {
      if (const auto parent = index_.find(entry.name.parent); parent != index_.end())
        ends.emplace(parent->second.used, parent->first);
    }
    victims.push_back(entry.name);
  }
  evicted_ += victims.size();
  return victims;
}

void StoreFolder::make_room(uint64_t bytes) {
  std::vector<ChunkName> victims;
  {
    const std::lock_guard lock(mutex_);
    victims = pick_victims(bytes);
  }
  for (const ChunkName& victim : victims) ::unlink(path(victim).c_str());
}

Status StoreFolder::write(const ChunkName& name, std::span<const std::byte> head, std::span<const std::byte> run) {
  const uint64_t bytes = head.size() + run.size();
  if (bytes > most_) return Status(StatusCode::resource_exhausted, "a chunk is larger than the whole store may be");
  make_room(bytes);
  const Status written = replace_file(path(name), [&](const ByteSink& sink) {
    const Status first = sink(head);
    return first.ok() ? sink(run) : first;
  });
  if (!written.ok()) return written;
  const std::lock_guard lock(mutex_);
  insert({name, bytes, time_now()});
  return {};
}

Result<std::vector<std::byte>> StoreFolder::read(const ChunkName& name) const {
  const std::string from = path(name);
  const File file(::open(from.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.fd < 0 && errno == ENOENT) return Status(StatusCode::not_found, "there is no " + from);
  struct stat info {};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0) return io_error("cannot read", from);
  if (!S_ISREG(info.st_mode) || static_cast<uint64_t>(info.st_size) > kLargestFile)
    return Status(StatusCode::data_loss, from + " is not a chunk");
  std::vector<std::byte> bytes(static_cast<size_t>(info.st_size));
  size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t count = ::read(file.fd, bytes.data() + at, bytes.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return io_error("cannot read", from);
    if (count == 0) break;
    at += static_cast<size_t>(count);
  }
  bytes.resize(at);
  return bytes;
}

void StoreFolder::touch(const ChunkName& name) {
  (void)::utimensat(AT_FDCWD, path(name).c_str(), nullptr, 0);
  const std::lock_guard lock(mutex_);
  if (const auto at = index_.find(name.key); at != index_.end()) at->second.used = time_now();
}

void StoreFolder::remove(const ChunkKey& key) {
  ChunkName name;
  {
    const std::lock_guard lock(mutex_);
    const auto at = index_.find(key);
    if (at == index_.end()) return;
    name = at->second.name;
    bytes_ -= at->second.bytes;
    index_.erase(at);
    const auto [from, to] = children_.equal_range(name.parent);
    children_.erase(std::find_if(from, to, [&](const auto& link) { return link.second == key; }));
  }
  ::unlink(path(name).c_str());
}

StoreFolder::Totals StoreFolder::totals() const {
  const std::lock_guard lock(mutex_);
  return {bytes_, index_.size(), most_};
}

uint64_t StoreFolder::evicted() const {
  const std::lock_guard lock(mutex_);
  return evicted_;
}

}  // namespace tierkv::serve
