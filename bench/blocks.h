// blocks.h — a run of blocks of one codec outside any cache: what the codec cases encode, attend over and check.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/data.h"
#include "quant/codec.h"
#include "quant/registry.h"

namespace tierkv::bench {

// One side of a KV head: `tokens` rows in blocks of `block`, all full.
class BlockRun {
 public:
  // `shape`: of the rows, for codecs that learn tables from such rows.
  static Result<BlockRun> encode(const quant::CodecSpec& spec, quant::Side side, Shape shape, const std::vector<float>& rows,
                                 uint32_t block, uint32_t dim);

  uint32_t tokens() const { return static_cast<uint32_t>(blocks_.size()) * block_; }
  double bits_per_value() const { return 8.0 * static_cast<double>(codec_->bytes()) / (static_cast<double>(block_) * dim_); }
  const quant::Codec& codec() const { return *codec_; }
  const std::vector<std::byte>& block(size_t i) const { return blocks_[i]; }

  std::vector<float> decode() const;
  // q·k of plain-frame queries with every token, on the codes: [count][tokens()].
  std::vector<float> scores(const std::vector<float>& queries, uint32_t count) const;
  // Sum of weights[count][tokens()] times the rows, on the codes, in the plain frame: [count][dim].
  std::vector<float> accumulate(const std::vector<float>& weights, uint32_t count) const;

 private:
  BlockRun() = default;
  quant::BlockContext context(size_t i) const;

  std::shared_ptr<const quant::Codec> codec_;
  uint32_t block_ = 0;
  uint32_t dim_ = 0;
  std::vector<std::vector<std::byte>> blocks_;
};

// Every row of the registry at every width it has (some where widths are parts of a bit), at its default group, and a few with the
// modifiers that matter. A codec for keys alone comes with its row's values.
std::vector<quant::CodecPair> specs_to_measure();

// softmax(q·K^T/sqrt(dim))·V on the codes of both runs.
std::vector<float> attention_on_codes(const BlockRun& keys, const BlockRun& values, const std::vector<float>& queries,
                                      uint32_t count, uint32_t dim);

// Scores and sums on codes must be those of the decoded rows in double precision; the error says which is not and by how much.
Status check_on_codes(const BlockRun& keys, const BlockRun& values, const std::vector<float>& queries, uint32_t count,
                      uint32_t dim);

}  // namespace tierkv::bench
