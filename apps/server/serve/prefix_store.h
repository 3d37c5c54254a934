// prefix_store.h — beginnings of prompts on disk, so that a server that was started again, or had no memory left for them, need not
// read them again.
//
// What is written waits in a bounded queue for a thread of low priority; what is wanted is read and checked by another thread while
// the server goes on. Whatever goes wrong (no space, no right to write, a slow disk, a file that is not what it says) is counted
// and costs a prompt that is read: no call here waits for a disk, fails, or throws.
//
// Threads: safe; the scheduler's thread calls, loaded() runs on the reading thread.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "serve/store_folder.h"
#include "tierkv/cache.h"

namespace tierkv::serve {

struct StoreOptions {
  std::string folder;
  uint64_t most_bytes = uint64_t{4} << 30;
  uint64_t most_waiting = uint64_t{64} << 20;  // bytes that wait to be written
  double rescan_s = 10.0;                      // how often others' files are looked for
  double pause_s = 30.0;                       // without writing, after a disk refused to
};

struct StoreCounts {
  uint64_t written_bytes = 0, loaded_bytes = 0;
  uint64_t written_chunks = 0, loaded_chunks = 0;
  uint64_t evicted_chunks = 0;
  uint64_t skipped_chunks = 0;  // not written: the queue was full, or writing failed a moment ago
  uint64_t failed_writes = 0;
  uint64_t late_loads = 0;             // came when their prompt was being read already
  std::array<uint64_t, 4> rejected{};  // by ChunkFault: cut, foreign, damaged; [0]: files that could not be read
  uint64_t bytes = 0, files = 0, most_bytes = 0, waiting_bytes = 0;
  std::string last_error;  // of the disk; empty: none yet
};

// The chunks a prompt begins with.
struct StoredPrefix {
  struct Part {
    ChunkName name;
    uint32_t first = 0;
  };
  std::vector<Part> parts;
  uint32_t tokens = 0;
  bool rest = false;  // the last has the recent tiers in it
};

// Being read. The runs belong to whoever has it once it is done.
struct Loading {
  StoredPrefix prefix;  // when it is done: what of it was good
  Tokens tokens;        // of the prompt, as many as the prefix has
  std::vector<std::vector<std::byte>> files;
  std::vector<std::span<const std::byte>> runs;  // in them
  std::atomic<bool> done{false};
  double began = 0.0;
};
using LoadingPtr = std::shared_ptr<Loading>;

class PrefixStore {
 public:
  // `loaded` is called when something has been read. The cache says which calibration a run must fit; it outlives the store.
  PrefixStore(const StoreOptions& options, const AdaptiveKVCache& cache, std::function<void()> loaded);
  // Writes what waits, for a few seconds.
  ~PrefixStore();
  PrefixStore(const PrefixStore&) = delete;
  PrefixStore& operator=(const PrefixStore&) = delete;

  // The longest chain that the tokens begin with: at most `most_runs` tokens of runs, or at most all tokens when a rest ends it.
  StoredPrefix find(const ChunkKey& root, std::span<const llama_token> tokens, uint32_t most_runs, bool runs_alone) const;
  LoadingPtr load(StoredPrefix prefix, std::span<const llama_token> tokens);
  // Its files were read and checked, and yet the cache did not take them.
  void reject(const Loading& loading);
  void late() { ++late_; }

  bool has(const ChunkKey& key) const;
  // False: the queue has no room now, or the disk refused a moment ago.
  bool has_room() const;
  // Takes a chunk to be written; `replaces` goes when it is there. Dropped, and counted, while the disk refuses.
  struct Chunk {
    ChunkName name;
    uint32_t first = 0;
    Tokens tokens;
    std::vector<std::byte> run;
    std::optional<ChunkKey> replaces;
  };
  void put(Chunk chunk);
  // Everything that was put has been written, or the time is over.
  bool flush(double seconds);

  StoreCounts counts() const;
  const std::string& folder() const { return folder_.folder(); }

 private:
  void write_loop();
  void write_one(const Chunk& chunk);
  void read_loop();
  void read(Loading& loading);
  ChunkFault check_run(std::span<const std::byte> run, uint32_t end) const;
  void note(const Status& problem);

  const StoreOptions options_;
  const AdaptiveKVCache& cache_;
  const std::function<void()> loaded_;
  StoreFolder folder_;

  mutable std::mutex mutex_;
  std::condition_variable write_wake_, read_wake_, written_;
  std::deque<Chunk> waiting_;
  std::map<ChunkKey, uint32_t> under_way_;  // keys in the queue or being written
  uint64_t waiting_bytes_ = 0;
  std::deque<LoadingPtr> wanted_;
  bool writing_ = false, stopping_ = false;
  double paused_until_ = 0.0;
  StoreCounts counts_;
  std::atomic<uint64_t> late_{0};

  std::thread writer_, reader_;
};

}  // namespace tierkv::serve
