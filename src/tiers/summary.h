// summary.h — what memory knows of an archive block without its bytes: the box that its keys lie in (quant/key_box.h).
//
// Of keys as attention reads them, better rows (+topN) included. A spilled block keeps it in place of its bytes; with
// CacheConfig::skip resident blocks have one too, behind their bytes, so that forks share it and it goes with them. A block whose
// summary could not be made has none, and is always read.
// Threads:  REQUIRES: the sequence's lock is held, or nobody else has the block yet.
#pragma once

#include <vector>

#include "tiers/stream.h"

namespace tierkv::tiers {

// The box of the rows of `ref` that are alive, into quant::box_bytes(head_dim) bytes. `block` is resident and has these rows: the
// reference's own, or one that will lie over it. Throws bad_alloc.
void make_summary(const StreamEnv& env, BlockHandle block, const BlockRef& ref, uint32_t layer, uint32_t head, std::byte* out);

// The same into the block, where it has room for one. REQUIRES: the caller has its only reference.
void summarise(const StreamEnv& env, BlockHandle block, const BlockRef& ref, uint32_t layer, uint32_t head) noexcept;

// Null: it has none. REQUIRES: resident.
const std::byte* summary_of(const StreamEnv& env, BlockHandle block);

}  // namespace tierkv::tiers
