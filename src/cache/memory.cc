// memory.cc — resident bytes. What a sequence holds is walked block by block; what the cache holds is in the arena's own books,
// which know every tier, so that nothing has to be remembered on the way and the call allocates nothing.
#include <algorithm>

#include "base/guarded.h"
#include "base/status_macros.h"
#include "cache/impl.h"
#include "store/packed_group.h"

namespace tierkv {

using tiers::BlockRef;
using tiers::HeadStream;
using tiers::Sequence;

namespace {

// Bytes of live rows. In the cache's figure each of several holders adds its share of what they hold together.
enum class Count { in_full, share };

void add_stream(const tiers::StreamEnv& env, const HeadStream& s, Count count, MemoryStats& stats) {
  const uint64_t row_bytes = 2ull * env.head_dim * sizeof(uint16_t);
  for (const BlockRef& ref : s.blocks) {
    const uint32_t tokens = ref.tokens();
    stats.fp16_bytes += ref.live * row_bytes;
    stats.bookkeeping_bytes += sizeof(store::BlockHeader);
    if (env.store->copy_record(ref.promoted() ? ref.base : ref.block))
      stats.bookkeeping_bytes += Arena::rounded(sizeof(store::ColdCopy));
    if (ref.positions) stats.bookkeeping_bytes += Arena::rounded(tokens * sizeof(uint32_t));
    if (ref.stats) stats.bookkeeping_bytes += Arena::rounded(static_cast<size_t>(tokens) * env.signals * sizeof(float));
    if (ref.block.packed()) {
      stats.parked_tokens += ref.live;
      continue;
    }
    for (const store::BlockHandle block : {ref.block, ref.base}) {
      if (!block || !block.spilled()) continue;
      const store::ColdCopy& record = *env.store->spilled(block);
      stats.bookkeeping_bytes += Arena::rounded(sizeof record) + Arena::rounded(record.summary_bytes);
    }
    if (ref.block.spilled()) {
      stats[ref.block.tier()].tokens += ref.live;
      stats.spilled_tokens += ref.live;
      continue;
    }
    const store::PayloadSizes sizes = tiers::payload_sizes(*ref.block.codec());
    if (ref.block.away()) {
      stats[ref.block.tier()].tokens += ref.live;
      stats.device_tokens += ref.live;
      stats.device_bytes += env.store->lost(ref.block) ? 0 : sizes.keys + sizes.values;
      continue;
    }
    const uint64_t holders = count == Count::share ? ref.block.references() : 1;
    const uint64_t payload = static_cast<uint64_t>(sizes.keys + sizes.values) * ref.live / (tokens * holders);
    TierMemory& tier = stats[ref.block.tier()];
    tier.tokens += ref.live;
    tier.payload_bytes += payload;
    tier.overhead_bytes += env.store->held_bytes(*ref.block.codec(), ref.block.tier()) - payload;
    if (!ref.promoted()) continue;
    if (ref.base.resident()) tier.overhead_bytes += env.store->held_bytes(*ref.base.codec(), ref.base.tier());
    stats.bookkeeping_bytes += sizeof(store::BlockHeader);
    stats.promoted_tokens += ref.live;
    stats.promoted_bytes += env.store->held_bytes(*ref.block.codec(), ref.block.tier()) / holders;
  }
  TierMemory& hot = stats[Tier::hot];
  hot.tokens += s.tail.rows();
  stats.fp16_bytes += s.tail.rows() * row_bytes;
  if (s.tail.buffer_bytes()) {
    const uint64_t payload = s.tail.payload_bytes() / (count == Count::share ? s.tail.buffer_references() : 1);
    hot.payload_bytes += payload;
    hot.overhead_bytes += s.tail.buffer_bytes() - payload;
  }
  stats.bookkeeping_bytes += s.blocks.storage_bytes() + s.tail.bookkeeping_bytes();
}

void walk_sequence(const tiers::StreamEnv& env, const Sequence& sequence, Count count, MemoryStats& stats) {
  const auto lock = sequence.mutex.as_is();
  stats.bookkeeping_bytes += sequence.record_bytes();
  for (uint32_t l = 0; l < sequence.num_layers(); ++l) {
    for (const HeadStream& s : sequence.heads(l)) add_stream(env, s, count, stats);
  }
  for (const store::PackedGroup* group : sequence.packed) stats.parked_bytes += group->held();
}

}  // namespace

MemoryStats AdaptiveKVCache::memory_usage() const {
  MemoryStats stats;
  SeqId last = 0;
  while (const auto sequence = impl_->sequence_after(last)) walk_sequence(impl_->env, *sequence, Count::share, stats);
  // With calls on other sequences under way the walk and the arena are read a moment apart; otherwise the parts are exactly the
  // arena's own figures.
  const Arena::Books books = impl_->arena->books();
  for (int t = 0; t < kNumTiers; ++t) {
    TierMemory& tier = stats.tier[t];
    tier.payload_bytes = std::min<uint64_t>(tier.payload_bytes, books.allocated[t]);
    tier.overhead_bytes = books.allocated[t] - tier.payload_bytes;
  }
  stats.bookkeeping_bytes = books.allocated[static_cast<int>(MemoryTag::bookkeeping)];
  stats.parked_bytes = books.allocated[static_cast<int>(MemoryTag::parked)];
  stats.free_bytes = books.free_bytes;
  stats.total_bytes = books.mapped;
  stats.peak_bytes = books.peak;
  stats.table_bytes = impl_->codecs.table_bytes();
  stats.scratch_bytes = impl_->store->scratch_bytes();
  stats.device_bytes = impl_->store->far() ? impl_->store->far()->held_bytes() : 0;
  if (impl_->cold) stats.cold_bytes = impl_->cold->file_bytes();
  stats.budget_bytes = impl_->config.byte_budget;
  for (int t = 0; t < kNumTiers; ++t) stats.graduated[t] = impl_->moves.graduated[t].load(std::memory_order_relaxed);
  stats.read_blocks = impl_->skip_counts.read;
  stats.skipped_blocks = impl_->skip_counts.left_out;
  stats.skipped_mass = impl_->skip_counts.left_out_mass;
  stats.evicted = impl_->moves.evicted.load(std::memory_order_relaxed);
  return stats;
}

Result<MemoryStats> AdaptiveKVCache::memory_usage(SeqId seq) const try {
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  MemoryStats stats;
  walk_sequence(impl_->env, *sequence, Count::in_full, stats);
  stats.total_bytes = stats.bookkeeping_bytes + stats.parked_bytes;
  for (const TierMemory& tier : stats.tier) stats.total_bytes += tier.bytes();
  stats.budget_bytes = impl_->config.byte_budget;
  return stats;
}
TIERKV_NO_MEMORY("look at a sequence")

}  // namespace tierkv
