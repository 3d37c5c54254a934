// choose_blocks.h — which blocks of a KV head a decoding step reads, by their summaries (tiers/summary.h) alone. For blocks in the
// cold file (attend_spilled.h) and for resident ones (skip_blocks.h).
//
// For a row of queries a block's summary gives a bound, which none of its scores is above, and an estimate of the mass of its rows:
// scores that spread like independent channels (quant::BoxScore) are taken for normal ones.
// The rows of one KV head, its query heads among them, are served by the same blocks.
// Threads:  a value; pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attn/attention.h"

namespace tierkv::cache {

// More rows of queries than this are a prompt, whose blocks are all read: each is wanted by one of them or another.
inline constexpr uint32_t kMostDecodingRows = 16;

struct BlockChoice {
  std::vector<uint8_t> read;  // by block
  size_t left_out = 0;
  double left_out_mass = 0.0;  // the most that those left out may have of any row's attention, by the bound
};

class BlockChooser {
 public:
  // `queries`: rows x head_dim, not scaled. `known`: of each row the log of a part of its sum that is read whatever is chosen,
  // minus infinity where nothing is known of it. `blocks` are to come.
  BlockChooser(std::span<const float> queries, std::span<const float> known, const attn::AttendParams& params, size_t blocks);

  // The next block and how many rows it has. A summary without a box: it may have anything.
  void add(const std::byte* summary, uint32_t rows);

  // The `count` blocks in which some row may find most.
  BlockChoice highest(size_t count) const;
  // Leaves out the least while together they have no more than `share` of any row's attention, by the bound.
  BlockChoice bounded(double share) const;
  // For each row the highest blocks, until they have `share` of its attention with what is read anyway, by the estimate.
  BlockChoice likely(double share) const;

 private:
  uint32_t rows() const { return static_cast<uint32_t>(known_.size()); }
  std::span<const float> bounds(uint32_t row) const { return {bounds_.data() + row * stride_, blocks_}; }
  std::span<const float> estimates(uint32_t row) const { return {estimates_.data() + row * stride_, blocks_}; }
  BlockChoice finish(std::vector<uint8_t> read) const;

  const std::span<const float> queries_, known_;
  const attn::AttendParams params_;
  const size_t stride_;  // whole vectors
  size_t blocks_ = 0;
  uint32_t counted_ = 1;
  float log_rows_ = 0.0f;                  // of that many
  std::vector<float> bounds_, estimates_;  // [row][block], logs of sums over the block's rows
};

}  // namespace tierkv::cache
