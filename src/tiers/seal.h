// seal.h — blocks made of rows: encoded by the backend, many of them in one call, and sealed in the store.
//
// What is due of all heads of a layer goes to the backend together, so that threads share it out, or a device gets enough to do at
// a time. Memory is asked for in the order of the blocks, on the caller's thread: which of them get some when it is short does not
// depend on threads either.
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "tiers/row_batch.h"

namespace tierkv::tiers {

// Where the bytes of a block go.
struct BlockRoom {
  std::span<std::byte> keys, values;
  explicit operator bool() const { return keys.data() != nullptr; }
};
inline BlockRoom room_of(Payload& payload) {
  if (!payload) return {};
  return {payload.keys(), payload.values()};
}

// Rows that become the bytes of one block: by the first of `tries` that takes them (nulls are passed over). A codec may refuse
// rows, its metadata has a range; the last one should be 16-bit rows.
struct Coding {
  const RowBatch* batch = nullptr;  // as many rows as a block has (pad_rows())
  const CodecEntry* tries[3] = {};
  quant::BlockContext ctx;
  std::function<BlockRoom(const CodecEntry& codec)> allocate;  // room for the codec it is asked for, or none
  const CodecEntry* took = nullptr;                            // null: memory ran out
};
void encode_rows(const StreamEnv& env, std::span<Coding> codings, const Executor& run) noexcept;

// Fills a batch of fewer rows than `codec` wants by repeating rows, and says in `ctx` what the rows weigh where `codec` keeps some
// better. False: no memory. REQUIRES: a batch that refers to a tail has as many rows as `codec` wants.
[[nodiscard]] bool pad_rows(const StreamEnv& env, RowBatch& batch, const CodecEntry& codec, quant::BlockContext& ctx);

// A block to be made of a batch of 1..codec->tokens rows: by `codec`, by its fallback when it refuses the rows, and as 16-bit rows
// in `raw` when both do.
struct Making {
  RowBatch* batch = nullptr;
  const CodecEntry* codec = nullptr;
  const CodecEntry* raw = nullptr;
  Tier tier = Tier::warm;
  const CodecEntry* source = nullptr;  // what the rows were decoded from; null: 16-bit rows
  uint32_t layer = 0;
  uint32_t head = 0;
  const quant::Codec* guide = nullptr;  // what the codec of the keys may look at (quant::BlockContext)
  bool copied = false;                  // copy_behind() is for this one

  std::optional<BlockRef> made;  // nothing when memory ran out
};
void seal(const StreamEnv& env, std::span<Making> blocks, Arena::Use use, const Executor& run) noexcept;

// One block, on the caller's thread alone.
std::optional<BlockRef> seal(const StreamEnv& env, Making block, Arena::Use use);

// A copy of the rows that new archive blocks were just made of goes to the cold file, in its codec. Without room there is none.
// REQUIRES: the blocks were sealed from these batches, and nobody else has a reference to them.
void copy_behind(const StreamEnv& env, std::span<const Making> blocks, const Executor& run) noexcept;

}  // namespace tierkv::tiers
