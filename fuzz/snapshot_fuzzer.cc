// Snapshots of any kind. The first byte says how the rest is taken: even, as it is; odd, with its length and checksum made right,
// so that the parser behind them is reached; with bit 3 as well the blocks' own checksums too, so that damaged codes and scales are
// judged by the codecs. Bits 1 and 2 pick the cache that reads it.
//
// What is refused must leave the cache alone and say why. What is accepted must be a sequence that works: attention, append,
// eviction, truncation, and a snapshot of it that loads again.
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "quant/registry.h"
#include "tierkv/cache.h"
#include "tierkv/snapshot.h"

// The engine's own mutator: libFuzzer's, or standalone_driver.cc's.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using tierkv::AdaptiveKVCache;
using tierkv::CacheConfig;
using tierkv::RowsView;
using tierkv::SeqId;

constexpr uint32_t kHeads = 2, kDim = 32;

void require(bool condition) {
  if (!condition) std::abort();
}

// The shapes of fuzz/corpus/snapshot; tests/golden/generate.cc writes those files from the same settings.
CacheConfig config_of(uint32_t which) {
  CacheConfig config;
  config.num_layers = 1;
  config.num_kv_heads = kHeads;
  config.head_dim = kDim;
  config.warm_block = config.archive_block = 16;
  config.tiers = {16, 32, "rot4", "rot2", 2, 0};
  if (which == 1) config.eviction.policy = "snapkv";
  if (which == 2) {
    config.tiers.warm_codec = "kivi4-g16";
    config.tiers.archive_codec = "turbo3/int8";
    config.eviction.policy = "h2o";
    config.eviction.observation = 4;
    config.max_seq_len = 64;
  }
  if (which == 3) config.tiers.window = 16;
  return config;
}

// One cache of each kind for the whole run: what an input leaves behind would show in the next.
AdaptiveKVCache& cache_of(uint32_t which) {
  static std::unique_ptr<AdaptiveKVCache> caches[4];
  if (!caches[which]) {
    auto made = AdaptiveKVCache::create(config_of(which));
    require(made.ok());
    caches[which] = std::move(made).value();
  }
  return *caches[which];
}

uint32_t load_u32(const std::vector<std::byte>& bytes, uint64_t at) {
  uint32_t x = 0;
  if (at <= bytes.size() && bytes.size() - at >= sizeof x) std::memcpy(&x, bytes.data() + at, sizeof x);
  return x;
}

// Follows a file as far as it makes sense and mends each block's checksum on the way.
class BlockMender {
 public:
  explicit BlockMender(std::vector<std::byte>& bytes) : bytes_(bytes) {}

  void run() {
    const uint32_t layers = u32(32), heads = u32(36), codecs = u32(52);
    head_dim_ = u32(40);
    signals_ = static_cast<uint64_t>(std::popcount(u32(48)));
    const uint64_t table = u32(20) + padded(u32(56)) + (u32(12) >= 2 ? 8 : 0);  // the id of a calibration
    const uint64_t first_layer = table + codecs * uint64_t{24};
    at_ = first_layer + layers * uint64_t{24};
    if (at_ > bytes_.size()) return;
    for (uint32_t i = 0; i < codecs; ++i) add_codec(table + i * uint64_t{24});
    for (uint32_t l = 0; l < layers; ++l) {
      for (uint32_t h = 0; h < heads; ++h) {
        if (!mend_stream(u32(first_layer + l * uint64_t{24} + 12))) return;
      }
    }
  }

 private:
  static uint64_t padded(uint64_t n) { return (n + 7) / 8 * 8; }
  uint32_t u32(uint64_t at) const { return load_u32(bytes_, at); }

  void add_codec(uint64_t at) {
    uint64_t sizes[2] = {0, 0};
    for (int side = 0; side < 2; ++side) {
      tierkv::quant::CodecSpec spec;
      std::memcpy(&spec, bytes_.data() + at + 8 * static_cast<size_t>(side), sizeof spec);
      const auto codec = tierkv::quant::make_codec(spec, static_cast<tierkv::quant::Side>(side), {u32(at + 16), head_dim_});
      if (codec.ok()) sizes[side] = (*codec)->bytes();
    }
    sizes_.push_back({sizes[0], sizes[1]});
  }

  bool mend_stream(uint32_t window) {
    const uint32_t blocks = u32(at_), rows = u32(at_ + 4), flags = u32(at_ + 12), capacity = u32(at_ + 16);
    at_ += 24;
    for (uint32_t b = 0; b < blocks; ++b) {
      if (!mend_block()) return false;
    }
    const uint64_t row_bytes = head_dim_ * uint64_t{4}, free_capacity = 2 * (uint64_t{rows} + window) + 16;
    at_ += (flags & 1 ? padded(rows * uint64_t{4}) : 0) + padded(rows * signals_ * 4) + rows * row_bytes;
    if (capacity > free_capacity) at_ += (capacity - free_capacity) * row_bytes;
    return at_ <= bytes_.size();
  }

  bool mend_block() {
    const uint64_t header = at_;
    const uint32_t codec = u32(header + 8), rows = u32(header) >> 16;
    if (codec >= sizes_.size()) return false;
    const auto [keys, values] = sizes_[codec];
    const uint64_t positions = u32(header) >> 8 & 1 ? padded(rows * uint64_t{4}) : 0;
    const uint64_t stats = u32(header) >> 8 & 2 ? 0 : padded(rows * signals_ * 4);
    const uint64_t first = header + 32 + positions + stats;
    at_ = first + padded(keys) + padded(values);
    if (keys == 0 || values == 0 || at_ > bytes_.size()) return false;
    const std::span<const std::byte> all(bytes_);
    const uint64_t parts[2] = {tierkv::checksum(all.subspan(first, keys)),
                               tierkv::checksum(all.subspan(first + padded(keys), values))};
    const uint64_t sum = tierkv::checksum(std::as_bytes(std::span(parts)));
    std::memcpy(bytes_.data() + header + 24, &sum, sizeof sum);
    return true;
  }

  std::vector<std::byte>& bytes_;
  uint64_t at_ = 0, signals_ = 0;
  uint32_t head_dim_ = 0;
  std::vector<std::pair<uint64_t, uint64_t>> sizes_;
};

void fix_up(std::vector<std::byte>& bytes, bool blocks) {
  if (bytes.size() < 72) return;
  const uint64_t size = bytes.size();
  std::memcpy(bytes.data() + 24, &size, sizeof size);
  if (blocks) BlockMender(bytes).run();
  const uint64_t sum = tierkv::checksum(std::span(bytes).first(bytes.size() - 8));
  std::memcpy(bytes.data() + bytes.size() - 8, &sum, sizeof sum);
}

bool same(const tierkv::MemoryStats& a, const tierkv::MemoryStats& b) {
  return std::memcmp(a.tier, b.tier, sizeof a.tier) == 0 && a.bookkeeping_bytes == b.bookkeeping_bytes &&
         a.total_bytes == b.total_bytes;
}

void use(AdaptiveKVCache& cache, SeqId seq) {
  const uint32_t length = cache.length(seq).value();
  require(cache.verify(seq).ok());
  std::vector<float> rows(40 * kHeads * kDim), out(2 * kHeads * kDim);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) / 25.0f;
  const auto view = [&](uint32_t tokens) { return RowsView::f32(rows.data(), tokens, kHeads, kDim); };
  if (length >= 2) require(cache.attention(seq, 0, view(2), out.data()).ok());
  std::vector<std::vector<uint32_t>> live;
  for (uint32_t h = 0; h < kHeads; ++h) live.push_back(cache.positions(seq, 0, h).value());
  if (!live[0].empty() && live[0] == live[1]) {
    std::vector<float> got(live[0].size() * kHeads * kDim);
    require(cache.get(seq, 0, live[0], got.data(), got.data()).ok());
  }
  const tierkv::Status appended = cache.append(seq, 0, view(40), view(40));
  require(appended.ok() || appended.code() == tierkv::StatusCode::out_of_range ||
          appended.code() == tierkv::StatusCode::resource_exhausted);
  if (appended.ok()) require(cache.attention(seq, 0, view(2), out.data()).ok());
  (void)cache.evict(seq, 24);  // refused where there is no policy
  (void)cache.truncate(seq, length / 2);
  const auto fork = cache.fork(seq);
  require(fork.ok());
  require(cache.flush().ok());
  const auto again = cache.freeze(*fork);
  require(again.ok());
  require(tierkv::inspect_snapshot(std::span<const std::byte>(*again)).ok());
  const auto back = cache.unfreeze(*again);
  require(back.ok());
  require(cache.freeze(*back).value() == *again);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  AdaptiveKVCache& cache = cache_of(data[0] >> 1 & 3);
  std::vector<std::byte> bytes(size - 1);
  if (size > 1) std::memcpy(bytes.data(), data + 1, size - 1);
  if (data[0] & 1) fix_up(bytes, data[0] & 8);

  const tierkv::MemoryStats before = cache.memory_usage();
  const auto loaded = cache.unfreeze(bytes);
  if (loaded.ok()) {
    require(tierkv::inspect_snapshot(std::span<const std::byte>(bytes)).ok());
    use(cache, *loaded);
    for (const SeqId seq : cache.sequences()) require(cache.remove(seq).ok());
    require(cache.flush().ok());
    require(cache.memory_usage().total_bytes == 0);
    return 0;
  }
  require(same(cache.memory_usage(), before));
  require(cache.sequences().empty());
  for (const char c : loaded.status().message()) require(static_cast<unsigned char>(c) >= 0x20);  // nothing that drives a terminal
  return 0;
}

// Most of what is tried has its checksums mended: without that nearly everything ends at the first test.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  if (size && seed % 16) data[0] |= seed & 16 ? 9 : 1;
  return size;
}
