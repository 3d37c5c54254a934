// fallback.h — the archive where nothing is known of the model: the first rows that are due for it say what each layer needs.
//
// An archive "auto" without tables has a list of choices (plan::LayerPlan::choices), smallest first. When the first block of a
// layer is due, its rows are coded with each of them in turn, and the first that is good enough stays: for this layer, in all
// sequences, as long as the cache lives. Blocks say what they are coded in, so a snapshot needs to know nothing of it. A layer that
// has not chosen when a sequence is frozen or loaded goes on as that sequence's newest archive blocks are, and without any as it
// would without a choice: both caches then make the same blocks.
//
// Good enough:  the error of a score q·k/sqrt(d), over the queries that went by, and the error of values (quant/coding_error.h),
//               means over the layer's KV heads, are below bounds that were chosen on real models (docs/use/quality.md).
// Queries:      the power of their channels, over the first kQueries of each layer. Where none went by (a prompt that was appended
//               at one go), they are taken to spread their scores over the keys as queries usually do.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "plan/planner.h"
#include "quant/coding_error.h"
#include "tierkv/cache.h"

namespace tierkv::cache {

// Variance of the error of a score, and relative squared error of values, that an archive may have.
inline constexpr double kMostScoreError = 0.16, kMostValueError = 0.25;
// What scores vary by over the keys of a block where no query was seen: more than in nine of ten layers that were measured.
inline constexpr double kUsualSpread = 8.0;

// One block's rows of one KV head.
struct BlockRows {
  const float* keys;
  const float* values;
  const float* power;  // as coding_error() takes it; null: not known
  quant::BlockContext ctx;
};

// The first of the choices that is good enough for all heads together; the last where none is. Throws bad_alloc.
uint32_t smallest_good(std::span<const quant::CodecEntry* const> choices, std::span<const BlockRows> heads);

// Mean squares of the channels of scaled queries. Threads: any.
class QueryPower {
 public:
  static constexpr uint32_t kQueries = 512;

  // Layers that have something to choose. Throws bad_alloc.
  void begin(const CacheConfig& config, const plan::Plans& plans);
  bool wants(uint32_t layer) const noexcept { return layers_ && layers_[layer].wanted.load(std::memory_order_relaxed); }
  // REQUIRES: rows in host memory, as check_queries() (rows.h) lets them pass.
  void add(uint32_t layer, const RowsView& queries, float scale) noexcept;
  // Of a KV head: head_dim floats. False: no query was seen.
  bool get(uint32_t layer, uint32_t kv_head, float* out) const noexcept;
  // The layer has chosen: its sums go.
  void drop(uint32_t layer) noexcept;

 private:
  struct Layer {
    std::atomic<bool> wanted{false};
    std::vector<double> sums;  // [kv head][head_dim]; empty: none
    uint64_t rows = 0;         // of each KV head: query heads that share it count one by one
  };
  uint32_t kv_heads_ = 0, head_dim_ = 0;
  mutable std::mutex mutex_;  // a leaf
  std::unique_ptr<Layer[]> layers_;
};

}  // namespace tierkv::cache
