#include "serve/prefix_store.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "engine/clock.h"
#include "tierkv/snapshot.h"

namespace tierkv::serve {
namespace {

using engine::now;

constexpr double kLastWords = 5.0;  // seconds that writing has when a server ends

void be_modest() { (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 10); }

std::chrono::duration<double> seconds(double count) { return std::chrono::duration<double>(std::max(count, 0.0)); }

}  // namespace

PrefixStore::PrefixStore(const StoreOptions& options, const AdaptiveKVCache& cache, std::function<void()> loaded)
    : options_(options), cache_(cache), loaded_(std::move(loaded)), folder_(options.folder, options.most_bytes) {
  note(folder_.scan());
  writer_ = std::thread([this] { write_loop(); });
  reader_ = std::thread([this] { read_loop(); });
}

PrefixStore::~PrefixStore() {
  (void)flush(kLastWords);
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  write_wake_.notify_all();
  read_wake_.notify_all();
  writer_.join();
  reader_.join();
}

void PrefixStore::note(const Status& problem) {
  if (problem.ok()) return;
  const std::lock_guard lock(mutex_);
  counts_.last_error = problem.message();
}

StoredPrefix PrefixStore::find(const ChunkKey& root, std::span<const llama_token> tokens, uint32_t most_runs,
                               bool runs_alone) const {
  StoredPrefix path, best;
  ChunkKey at = root;
  for (bool more = true; more;) {
    more = false;
    for (const ChunkName& child : folder_.children(at)) {
      if (child.tokens > tokens.size() - path.tokens) continue;
      if (child_key(at, child.kind, tokens.subspan(path.tokens, child.tokens)) != child.key) continue;
      StoredPrefix longer = path;
      longer.parts.push_back({child, path.tokens});
      longer.tokens += child.tokens;
      longer.rest = child.kind == ChunkKind::rest;
      const bool serves = longer.rest || (runs_alone && longer.tokens <= most_runs);
      if (serves && longer.tokens > best.tokens) best = longer;
      if (longer.rest || more) continue;
      path = std::move(longer);
      at = child.key;
      more = true;
    }
  }
  return best;
}

LoadingPtr PrefixStore::load(StoredPrefix prefix, std::span<const llama_token> tokens) {
  auto loading = std::make_shared<Loading>();
  loading->tokens.assign(tokens.begin(), tokens.begin() + prefix.tokens);
  loading->prefix = std::move(prefix);
  loading->began = now();
  {
    const std::lock_guard lock(mutex_);
    wanted_.push_back(loading);
  }
  read_wake_.notify_one();
  return loading;
}

void PrefixStore::read_loop() {
  for (;;) {
    LoadingPtr loading;
    {
      std::unique_lock lock(mutex_);
      read_wake_.wait(lock, [this] { return stopping_ || !wanted_.empty(); });
      if (stopping_) return;
      loading = wanted_.front();
      wanted_.pop_front();
    }
    if (loading.use_count() > 1) {  // somebody still waits for it
      try {
        read(*loading);
      } catch (const std::bad_alloc&) {
        loading->prefix = {};
      }
    }
    loading->done = true;
    if (loaded_) loaded_();
  }
}

// The run is whole, and of this cache's model; tokens it must end at.
ChunkFault PrefixStore::check_run(std::span<const std::byte> run, uint32_t end) const {
  const auto info = inspect_snapshot(run, cache_.calibration());
  if (!info.ok()) return info.status().code() == StatusCode::data_loss ? ChunkFault::damaged : ChunkFault::foreign;
  const CacheConfig& config = cache_.config();
  const bool ours = info->num_layers == config.num_layers && info->num_kv_heads == config.num_kv_heads &&
                    info->head_dim == config.head_dim && info->model == config.model && info->length == end && !info->lacks_tables;
  return ours ? ChunkFault::none : ChunkFault::foreign;
}

void PrefixStore::read(Loading& loading) {
  StoredPrefix good;
  uint64_t bytes = 0;
  for (const StoredPrefix::Part& part : loading.prefix.parts) {
    auto file = folder_.read(part.name);
    ChunkFault fault = ChunkFault::none;
    std::span<const std::byte> run;
    const uint32_t end = part.first + part.name.tokens;
    if (file.ok()) {
      fault = open_chunk(*file, part.name, part.first, std::span(loading.tokens).subspan(part.first, part.name.tokens), run);
      if (fault == ChunkFault::none) fault = check_run(run, end);
    }
    if (!file.ok() || fault != ChunkFault::none) {
      const bool gone = !file.ok() && file.status().code() == StatusCode::not_found;  // another server needed the room
      folder_.remove(part.name.key);
      if (!file.ok() && !gone) note(file.status());
      const std::lock_guard lock(mutex_);
      if (!gone) ++counts_.rejected[static_cast<size_t>(fault)];
      break;
    }
    folder_.touch(part.name);
    bytes += file->size();
    loading.files.push_back(std::move(file).value());
    loading.runs.push_back(std::span(loading.files.back()).last(run.size()));
    good.parts.push_back(part);
    good.tokens = end;
    good.rest = part.name.kind == ChunkKind::rest;
  }
  loading.prefix = std::move(good);
  const std::lock_guard lock(mutex_);
  counts_.loaded_bytes += bytes;
  counts_.loaded_chunks += loading.files.size();
}

void PrefixStore::reject(const Loading& loading) {
  for (const StoredPrefix::Part& part : loading.prefix.parts) folder_.remove(part.name.key);
  const std::lock_guard lock(mutex_);
  ++counts_.rejected[static_cast<size_t>(ChunkFault::damaged)];
}

bool PrefixStore::has(const ChunkKey& key) const {
  {
    const std::lock_guard lock(mutex_);
    if (under_way_.contains(key)) return true;
  }
  return folder_.has(key);
}

bool PrefixStore::has_room() const {
  const std::lock_guard lock(mutex_);
  return waiting_bytes_ < options_.most_waiting && now() >= paused_until_;
}

void PrefixStore::put(Chunk chunk) {
  {
    const std::lock_guard lock(mutex_);
    if (now() < paused_until_ || waiting_bytes_ >= options_.most_waiting) {
      ++counts_.skipped_chunks;
      return;
    }
    waiting_bytes_ += chunk.run.size();
    ++under_way_[chunk.name.key];
    waiting_.push_back(std::move(chunk));
  }
  write_wake_.notify_one();
}

bool PrefixStore::flush(double for_seconds) {
  std::unique_lock lock(mutex_);
  return written_.wait_for(lock, seconds(for_seconds), [this] { return waiting_.empty() && !writing_; });
}

void PrefixStore::write_loop() {
  be_modest();
  double looked = now();
  for (;;) {
    Chunk chunk;
    bool have = false;
    {
      std::unique_lock lock(mutex_);
      write_wake_.wait_for(lock, seconds(looked + options_.rescan_s - now()), [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      if (!waiting_.empty()) {
        chunk = std::move(waiting_.front());
        waiting_.pop_front();
        have = writing_ = true;
      }
    }
    if (have) {
      write_one(chunk);
      const std::lock_guard lock(mutex_);
      waiting_bytes_ -= chunk.run.size();
      if (--under_way_[chunk.name.key] == 0) under_way_.erase(chunk.name.key);
      writing_ = false;
      if (waiting_.empty()) written_.notify_all();
    }
    if (now() >= looked + options_.rescan_s) {
      note(folder_.scan());
      looked = now();
    }
  }
}

void PrefixStore::write_one(const Chunk& chunk) {
  {
    const std::lock_guard lock(mutex_);
    if (now() < paused_until_) {
      ++counts_.skipped_chunks;
      return;
    }
  }
  const std::vector<std::byte> head = chunk_head(chunk.name, chunk.first, chunk.tokens, chunk.run.size());
  const Status written = folder_.has(chunk.name.key) ? Status() : folder_.write(chunk.name, head, chunk.run);
  if (written.ok() && chunk.replaces && *chunk.replaces != chunk.name.key) folder_.remove(*chunk.replaces);
  const std::lock_guard lock(mutex_);
  if (written.ok()) {
    ++counts_.written_chunks;
    counts_.written_bytes += head.size() + chunk.run.size();
    return;
  }
  ++counts_.failed_writes;
  counts_.last_error = written.message();
  paused_until_ = now() + options_.pause_s;
}

StoreCounts PrefixStore::counts() const {
  const StoreFolder::Totals totals = folder_.totals();
  const uint64_t evicted = folder_.evicted();
  const std::lock_guard lock(mutex_);
  StoreCounts out = counts_;
  out.bytes = totals.bytes;
  out.files = totals.files;
  out.most_bytes = totals.most_bytes;
  out.evicted_chunks = evicted;
  out.waiting_bytes = waiting_bytes_;
  out.late_loads = late_;
  return out;
}

}  // namespace tierkv::serve
