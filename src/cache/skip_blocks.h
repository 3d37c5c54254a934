// skip_blocks.h — resident archive blocks that a decoding step leaves unread (CacheConfig::skip).
//
// What they are measured against is read first and then again: the scores of the first tokens and of the tail, which is where most
// attention goes. Everything that is not an archive block with a summary is read whatever is chosen. What is left is attended to as
// if nothing else were there: when nothing is left out, to the bit as without `skip`.
#pragma once

#include "attn/backend.h"
#include "cache/choose_blocks.h"
#include "cache/impl.h"

namespace tierkv::cache {

// Queries of one item and one layer, and how they see.
struct SkipQuery {
  RowsView queries;
  const uint32_t* positions = nullptr;
  const float* sink_logits = nullptr;  // one per query head, or null
  attn::AttendParams params;
};

// Whether blocks may be left out of such a call at all.
bool may_skip(const AdaptiveKVCache::Impl& impl, const SkipQuery& query);

// Takes what is left out of `views` of a KV head. Without memory nothing is. REQUIRES: may_skip().
void skip_blocks(const AdaptiveKVCache::Impl& impl, const SkipQuery& query, uint32_t head, tiers::StreamViews& views) noexcept;

}  // namespace tierkv::cache
