// deep_blocks.h — a deep archive back into blocks: piece by piece, so that its rows are never all there at once.
//
// Memory:   a few chunks of the run at a time are held as 16-bit rows of all coded layers, at most kMostHeld bytes or one chunk
//           (512 tokens of ours) and one block, with the tables as floats, outside the arena and its limit. They go back to the
//           system before the call returns. BlockStore's arena holds the blocks themselves.
// Threads:  the pool's; `seal` is called from several at once, for different streams.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "snapshot/deep_part.h"
#include "tiers/row_batch.h"

namespace tierkv::snapshot {

// Rows [first, first + count) of one KV head, in tokens of the run, that become one block.
struct DeepBlock {
  uint32_t layer = 0, head = 0;
  uint32_t first = 0, count = 0;
  size_t index = 0;  // the caller's
};
// By stream, each in ascending order.
using DeepBlocks = std::vector<std::vector<DeepBlock>>;
// The rows with their positions. False: no memory.
using SealRows = std::function<bool(const DeepBlock& block, tiers::RowBatch& rows)>;

inline constexpr uint64_t kMostHeld = uint64_t{256} << 20;

// resource_exhausted: seal() said so. As deep::decode() otherwise; some blocks may have been sealed by then.
[[nodiscard]] Status decode_blocks(const StreamEnv& env, const DeepCalibration& calibration, std::span<const std::byte> bytes,
                                   const DeepBlocks& blocks, ThreadPool& pool, const SealRows& seal);

// What a snapshot's deep part takes from the arena, if no codec refuses its rows.
[[nodiscard]] uint64_t deep_needed_bytes(const StreamEnv& env, const Snapshot& snapshot, std::span<const LayerPlan> plans,
                                         const calib::DeepTables& tables);
// A snapshot's deep part into new blocks of the coldest tier that each layer has, of a sequence that was made for it.
// resource_exhausted: the arena has no room; the sequence is as it was.
[[nodiscard]] Status insert_deep(const StreamEnv& env, const Snapshot& snapshot, std::span<const LayerPlan> plans,
                                 const DeepCalibration& calibration, ThreadPool& pool, Sequence& sequence);

}  // namespace tierkv::snapshot
