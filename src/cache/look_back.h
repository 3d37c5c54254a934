// look_back.h — archived blocks that queries look at again come back from the cold file, and go when nobody does (CacheConfig's
// `promote`).
//
// Every kLookEvery-th call of a layer asks its backend what archived blocks receive, which costs it some percent of that call.
// policy/promotion.h decides. A block that comes back is its copy bit for bit and lies over the archived one, as promote() has it.
// What fails (no memory, a damaged copy, a disk that says no) leaves the block as it is: the archive is always there.
#pragma once

#include <span>

#include "cache/impl.h"

namespace tierkv::cache {

inline constexpr uint32_t kLookEvery = 4;            // AKV's cool-down
inline constexpr uint32_t kMostLookingQueries = 64;  // of a call that looks: more are a prompt's, and see all of it anyway

// Whether this call of `queries` queries shall say what blocks receive; counts it. REQUIRES: the sequence's lock is held. Throws
// bad_alloc.
bool looks_back(const AdaptiveKVCache::Impl& impl, tiers::Sequence& sequence, uint32_t layer, uint32_t queries);

// What they received, of every KV head in order, from `rows` rows of queries each. REQUIRES: the lock.
void look_back(AdaptiveKVCache::Impl& impl, tiers::Sequence& sequence, uint32_t layer, std::span<const BlockMass> blocks,
               uint32_t rows) noexcept;

// Everything that came back by itself goes again, for whoever lacks memory. False: nothing had. REQUIRES: no lock is held.
bool drop_promoted(AdaptiveKVCache::Impl& impl, SeqId seq) noexcept;

}  // namespace tierkv::cache
