// row_batch.h — rows on their way from one tier to the next, as plain floats with their positions and statistics.
//
// At most one block's worth at a time: this is the only place where compressed rows are ever widened for re-encoding.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "tiers/stream.h"

namespace tierkv::tiers {

struct RowBatch {
  std::vector<float> keys, values;  // [rows][head_dim]
  std::vector<uint32_t> positions;
  std::vector<float> stats;  // [rows][signals]
  std::vector<float> mass;   // what encode_rows() tells codecs that keep some rows better

  uint32_t rows() const { return static_cast<uint32_t>(positions.size()); }
  void clear();
  void add_tail(const StreamEnv& env, const Tail& tail, uint32_t count);
  void add_live_rows(const StreamEnv& env, const BlockRef& ref, uint32_t layer, uint32_t head);
  void add_rows(const StreamEnv& env, const RowBatch& from, uint32_t first, uint32_t count);
};

// One row of a hot tail as floats.
void widen_row(const StreamEnv& env, const uint16_t* from, float* to);

// The batch of this thread, empty.
RowBatch& scratch_batch();

// Encodes the batch (1..codec.tokens rows; short ones are padded by repeating rows) with `codec`, with its fallback when it refuses
// the rows (it may: its metadata has a range), and as 16-bit rows in `raw` when both do. `allocate` gives memory for the codec it
// is asked for, or null. The codec that took them; null when memory ran out.
using AllocatePayload = std::function<Payload*(const CodecEntry& codec)>;
const CodecEntry* encode_rows(const StreamEnv& env, RowBatch& batch, const CodecEntry& codec, const CodecEntry& raw,
                              const quant::BlockContext& ctx, const AllocatePayload& allocate);

// Seals the batch into a new block, by encode_rows(). `guide`: what the codec of the keys may look at (quant::BlockContext).
// Nothing when memory ran out.
std::optional<BlockRef> seal(const StreamEnv& env, RowBatch& batch, const CodecEntry& codec, const CodecEntry& raw, Tier tier,
                             const CodecEntry* source, uint32_t layer, uint32_t head, Arena::Use use,
                             const quant::Codec* guide = nullptr);

// The rows of the archive block that settle() would make next; nothing moves. Those that are still in the tail are as they are
// there. False: none is due.
[[nodiscard]] bool due_for_archive(const StreamEnv& env, const HeadStream& s, const LayerPlan& plan, RowBatch& batch);

// A copy of the rows that a new archive block was just made of goes to the cold file, in its codec. Without room there is none.
// REQUIRES: the block was sealed from this batch, and nobody else has a reference to it.
void copy_behind(const StreamEnv& env, const RowBatch& batch, const BlockRef& ref) noexcept;

}  // namespace tierkv::tiers
