// store_folder.h — the files of the prefix store: what is there, what was used longest ago, writing, reading and removing.
//
// A chunk is one file, written under another name, flushed and renamed (tierkv/file.h): a process that is killed leaves nothing
// that looks like a chunk, and what it leaves the next scan removes. Several processes may share a folder: a name says what is in
// it, so two that write one write the same. A file's time of change is when it was last used.
//
// Removing takes files first that no other file goes on from, the one used longest ago first: a chain is shortened from its end.
//
// Errors:  Status, never an exception: a store that does not work is a server that reads prompts.
// Threads: safe. No lock is held while a file is read or written.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "serve/chunk.h"
#include "tierkv/status.h"

namespace tierkv::serve {

class StoreFolder {
 public:
  StoreFolder(std::string folder, uint64_t most_bytes) : folder_(std::move(folder)), most_(most_bytes) {}

  // Makes the folder where it is missing, looks at what is in it, removes what killed writers left and what is too much.
  Status scan();

  // The chunk of that name is there, as far as the last look and our own writing tell.
  bool has(const ChunkKey& key) const;
  // Those that go on from a chunk or a root, the longest first, and rests before runs of their length.
  std::vector<ChunkName> children(const ChunkKey& parent) const;

  // Makes room, then writes. resource_exhausted: it is larger than the whole store may be.
  Status write(const ChunkName& name, std::span<const std::byte> head, std::span<const std::byte> run);
  Result<std::vector<std::byte>> read(const ChunkName& name) const;
  // It was used just now.
  void touch(const ChunkName& name);
  void remove(const ChunkKey& key);

  struct Totals {
    uint64_t bytes = 0, files = 0, most_bytes = 0;
  };
  Totals totals() const;
  uint64_t evicted() const;
  const std::string& folder() const { return folder_; }

 private:
  struct Entry {
    ChunkName name;
    uint64_t bytes = 0;
    int64_t used = 0;  // nanoseconds since 1970
  };
  using Index = std::map<ChunkKey, Entry>;

  std::string path(const ChunkName& name) const { return folder_ + "/" + name.file(); }
  void insert(const Entry& entry);
  std::vector<ChunkName> pick_victims(uint64_t room);
  void make_room(uint64_t bytes);
  void sweep(const std::string& leftover) const;

  const std::string folder_;
  const uint64_t most_;
  mutable std::mutex mutex_;
  Index index_;
  std::multimap<ChunkKey, ChunkKey> children_;
  uint64_t bytes_ = 0, evicted_ = 0;
};

}  // namespace tierkv::serve
