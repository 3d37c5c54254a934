// attend_spilled.h — what blocks in the cold file add to the attention of one item whose resident part is done.
//
// They are read into a buffer of kPieceBytes at most, outside the arena (MemoryStats::scratch_bytes), attended to like others, and
// joined by the sums of both parts, as the parts of a long sequence are. Neighbours in the file are one read.
// Which ones: all of them, for prompts always; for decoding `spill` may leave some out, by the bounds of their keys.
// Mass: of resident rows alone. Spilled blocks are archive blocks: which of their rows are kept better is decided, and no policy
// goes with `spill`.
#pragma once

#include <span>

#include "attn/backend.h"
#include "cache/impl.h"

namespace tierkv::cache {

inline constexpr size_t kPieceBytes = size_t{1} << 20;

// `done`: the resident part, with out and lse, which get the whole. data_loss, io_error: the file could not be read; out is
// undefined then. Throws bad_alloc. REQUIRES: the sequence's lock is held.
[[nodiscard]] Status join_spilled(AdaptiveKVCache::Impl& impl, uint32_t layer, std::span<const tiers::StreamViews> heads,
                                  attn::AttendWork& done, const Executor& run);

// Tells the resident rows that somebody wants to know of what they received, now that done.lse is of all that was read: their
// scores are taken a second time, because no weight is mass before. `wanted`: of each KV head, its views' own counting.
// resource_exhausted: no memory.
[[nodiscard]] Status weigh_resident(const AdaptiveKVCache::Impl& impl, std::vector<attn::HeadMass> wanted,
                                    const attn::AttendWork& done, const Executor& run);

}  // namespace tierkv::cache
