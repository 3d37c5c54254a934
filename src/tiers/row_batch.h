// row_batch.h — rows on their way from one tier to the next, with their positions and statistics: as plain floats, or where they
// are, in a tail or in blocks.
//
// At most one block's worth of a head at a time. Whoever encodes rows that are somewhere widens them (attn::EncodeWork), on a
// device perhaps. seal.h makes blocks of them.
#pragma once

#include <vector>

#include "tiers/stream.h"

namespace tierkv::tiers {

struct RowBatch {
  std::vector<float> keys, values;             // [rows][head_dim]; empty: they are in `blocks`, or where there are none in a tail
  std::vector<attn::BlockRows> blocks;         // whose bytes stay for as long as they do in the store
  std::vector<std::vector<std::byte>> loaded;  // of those whose bytes a device had
  attn::TailRows tail_keys, tail_values;
  std::vector<uint32_t> positions;
  std::vector<float> stats;  // [rows][signals]
  std::vector<float> mass;   // what codecs that keep some rows better are told

  uint32_t rows() const { return static_cast<uint32_t>(positions.size()); }
  void clear();
  void add_tail(const StreamEnv& env, const Tail& tail, uint32_t count);
  // The first `count` rows stay where they are, for as long as the tail does. `owner`: as attn::TailRows has it. REQUIRES: empty,
  // and a linear tail.
  void refer_to_tail(const StreamEnv& env, const Tail& tail, uint32_t count, const void* owner, uint32_t head);
  // As floats. Throws bad_alloc, also where a device does not give a block's bytes. REQUIRES: the lock of the block's sequence is
  // held, and no rows are in blocks.
  void add_live_rows(const StreamEnv& env, const BlockRef& ref, uint32_t layer, uint32_t head);
  // The same, but that they stay in the block. REQUIRES: the lock, and that no rows are floats.
  void refer_to_live_rows(const StreamEnv& env, const BlockRef& ref, uint32_t layer, uint32_t head);
  // The rows in blocks become floats, once somebody has done what is added to `works`.
  void list_decodes(const StreamEnv& env, std::vector<attn::DecodeWork>& works);
  void add_rows(const StreamEnv& env, const RowBatch& from, uint32_t first, uint32_t count);

 private:
  void add_positions(const StreamEnv& env, const Tail& tail, uint32_t count);
};

// One row of a hot tail as floats.
void widen_row(const StreamEnv& env, const uint16_t* from, float* to);

// The batch of this thread, empty.
RowBatch& scratch_batch();

// The rows of the archive block that settle() would make next; nothing moves. Those that are still in the tail are as they are
// there. False: none is due.
[[nodiscard]] bool due_for_archive(const StreamEnv& env, const HeadStream& s, const LayerPlan& plan, RowBatch& batch);

}  // namespace tierkv::tiers
