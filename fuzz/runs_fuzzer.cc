// Runs of a sequence, damaged: an input is a list of edits of four bytes each on the runs of one sequence (which run, where, and
// what to change there), and the first byte says which runs are handed over and whether lengths and checksums are made right.
//
// What is refused must leave the cache alone and say why. What is accepted must be a sequence that works and can be cut into runs
// again.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/checksum.h"
#include "tierkv/cache.h"

namespace {

using tierkv::AdaptiveKVCache;
using tierkv::CacheConfig;
using tierkv::RowsView;
using tierkv::SeqId;
using Bytes = std::vector<std::byte>;

constexpr uint32_t kHeads = 2, kDim = 32, kTokens = 200;

void require(bool condition) {
  if (!condition) std::abort();
}

std::unique_ptr<AdaptiveKVCache> make_cache() {
  CacheConfig config;
  config.num_layers = 1;
  config.num_kv_heads = kHeads;
  config.head_dim = kDim;
  config.warm_block = config.archive_block = 16;
  config.tiers = {16, 32, "rot4", "rot2", 2, 0};
  auto made = AdaptiveKVCache::create(config);
  require(made.ok());
  return std::move(made).value();
}

std::vector<float> rows_of(uint32_t tokens) {
  std::vector<float> rows(static_cast<size_t>(tokens) * kHeads * kDim);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) / 25.0f;
  return rows;
}

std::vector<Bytes> cut(const AdaptiveKVCache& cache, SeqId seq) {
  const auto ends = cache.run_ends(seq);
  require(ends.ok());
  const uint32_t length = cache.length(seq).value();
  std::vector<Bytes> runs;
  uint32_t first = 0;
  const auto add = [&](uint32_t end) {
    auto run = cache.freeze_run(seq, first, end);
    if (run.ok()) runs.push_back(std::move(run).value());  // refused where tokens are missing
    first = end;
  };
  for (size_t i = 2; i < ends->size(); i += 2) {
    if ((*ends)[i] != length) add((*ends)[i]);
  }
  add(length);
  return runs;
}

// The runs of one sequence, made once.
const std::vector<Bytes>& good_runs() {
  static const std::vector<Bytes> runs = [] {
    const auto cache = make_cache();
    const SeqId seq = cache->add_sequence().value();
    const std::vector<float> rows = rows_of(kTokens);
    const RowsView view = RowsView::f32(rows.data(), kTokens, kHeads, kDim);
    require(cache->append(seq, 0, view, view).ok());
    return cut(*cache, seq);
  }();
  return runs;
}

void mend(Bytes& run) {
  if (run.size() < 72) return;
  const uint64_t size = run.size();
  std::memcpy(run.data() + 24, &size, sizeof size);
  const uint64_t sum = tierkv::checksum(std::span(run).first(run.size() - 8));
  std::memcpy(run.data() + run.size() - 8, &sum, sizeof sum);
}

void use(AdaptiveKVCache& cache, SeqId seq) {
  require(cache.verify(seq).ok());
  const uint32_t length = cache.length(seq).value();
  const std::vector<float> rows = rows_of(40);
  const RowsView view = RowsView::f32(rows.data(), 40, kHeads, kDim), two = RowsView::f32(rows.data(), 2, kHeads, kDim);
  std::vector<float> out(2 * kHeads * kDim);
  if (length >= 2) require(cache.attention(seq, 0, two, out.data()).ok());
  (void)cut(cache, seq);
  const auto appended = cache.append(seq, 0, view, view);
  require(appended.ok() || appended.code() == tierkv::StatusCode::out_of_range);
  if (appended.ok()) require(cache.attention(seq, 0, two, out.data()).ok());
  (void)cache.truncate(seq, length / 2);
  require(cache.freeze(seq).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<AdaptiveKVCache> cache = make_cache();
  if (size == 0) return 0;
  std::vector<Bytes> runs = good_runs();
  require(runs.size() >= 3);
  for (size_t at = 1; at + 4 <= size; at += 4) {
    Bytes& run = runs[data[at] % runs.size()];
    const size_t place = (data[at + 1] | static_cast<size_t>(data[at + 2]) << 8) % (run.size() + 64);
    if (place >= run.size()) run.resize(run.size() / 2 + 1);
    else run[place] ^= std::byte{data[at + 3]};
  }
  if (data[0] & 1) {
    for (Bytes& run : runs) mend(run);
  }
  if (data[0] & 2) runs.erase(runs.begin() + data[0] / 16 % static_cast<int>(runs.size()));
  if (data[0] & 4) std::swap(runs.front(), runs[data[0] / 16 % runs.size()]);

  const std::vector<std::span<const std::byte>> spans(runs.begin(), runs.end());
  const auto loaded = cache->unfreeze_runs(spans);
  if (!loaded.ok()) {
    require(cache->sequences().empty());
    for (const char c : loaded.status().message()) require(static_cast<unsigned char>(c) >= 0x20);
    return 0;
  }
  use(*cache, *loaded);
  require(cache->remove(*loaded).ok());
  require(cache->flush().ok());
  require(cache->memory_usage().total_bytes == 0);
  return 0;
}
