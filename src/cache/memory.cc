// memory.cc — resident bytes: what the streams hold, walked block by block, set against what the arena gave out.
#include <algorithm>
#include <unordered_set>

#include "base/guarded.h"
#include "base/status_macros.h"
#include "cache/impl.h"
#include "tiers/parked.h"

namespace tierkv {

using tiers::BlockRef;
using tiers::HeadStream;
using tiers::Sequence;

namespace {

// Blocks and tails that several sequences share count once when `seen` is given.
void add_stream(const tiers::StreamEnv& env, const HeadStream& s, MemoryStats& stats, std::unordered_set<const void*>* seen) {
  const uint64_t row_bytes = 2ull * env.head_dim * sizeof(uint16_t);
  for (const BlockRef& ref : s.blocks) {
    TierMemory& tier = stats[ref.block->tier];
    const uint32_t tokens = ref.block->codec->tokens;
    tier.tokens += ref.live;
    stats.fp16_bytes += ref.live * row_bytes;
    if (!seen || seen->insert(ref.block).second) {
      const uint64_t held = Arena::rounded(ref.block->total_bytes());
      const uint64_t payload = static_cast<uint64_t>(ref.block->payload_bytes()) * ref.live / tokens;
      tier.payload_bytes += payload;
      tier.overhead_bytes += held - payload;
    }
    if (ref.positions) stats.bookkeeping_bytes += Arena::rounded(tokens * sizeof(uint32_t));
    if (ref.stats) stats.bookkeeping_bytes += Arena::rounded(static_cast<size_t>(tokens) * env.signals * sizeof(float));
  }
  TierMemory& hot = stats[Tier::hot];
  hot.tokens += s.tail.rows();
  stats.fp16_bytes += s.tail.rows() * row_bytes;
  if (s.tail.buffer_identity() && (!seen || seen->insert(s.tail.buffer_identity()).second)) {
    hot.payload_bytes += s.tail.payload_bytes();
    hot.overhead_bytes += s.tail.buffer_bytes() - s.tail.payload_bytes();
  }
  stats.bookkeeping_bytes += s.blocks.storage_bytes() + s.tail.bookkeeping_bytes();
}

void walk_sequence(const tiers::StreamEnv& env, const Sequence& sequence, MemoryStats& stats,
                   std::unordered_set<const void*>* seen) {
  std::lock_guard lock(sequence.mutex);
  stats.bookkeeping_bytes += sequence.record_bytes();
  for (uint32_t l = 0; l < sequence.num_layers(); ++l) {
    for (const HeadStream& s : sequence.heads(l)) add_stream(env, s, stats, seen);
  }
  if (sequence.parked) {
    const uint64_t tokens = sequence.parked->rows(sequence.kv_heads());
    stats.parked_tokens += tokens;
    stats.parked_bytes += sequence.parked->bytes.held();
    stats.fp16_bytes += tokens * 2 * env.head_dim * sizeof(uint16_t);
  }
}

}  // namespace

MemoryStats AdaptiveKVCache::memory_usage() const {
  MemoryStats stats;
  std::vector<std::shared_ptr<Sequence>> all;
  {
    std::lock_guard lock(impl_->map_mutex);
    for (const auto& [id, sequence] : impl_->sequences) all.push_back(sequence);
  }
  std::unordered_set<const void*> seen;
  for (const auto& sequence : all) walk_sequence(impl_->env, *sequence, stats, &seen);
  uint64_t used = stats.bookkeeping_bytes + stats.parked_bytes;
  for (const TierMemory& tier : stats.tier) used += tier.bytes();
  stats.total_bytes = impl_->arena->mapped();
  stats.table_bytes = impl_->codecs.table_bytes();
  // With calls on other sequences under way the walk and the arena are read a moment apart; otherwise this is exactly the arena's
  // own figure.
  stats.free_bytes = stats.total_bytes > used ? stats.total_bytes - used : 0;
  stats.total_bytes += stats.table_bytes;
  stats.peak_bytes = impl_->arena->peak() + stats.table_bytes;
  stats.budget_bytes = impl_->config.byte_budget;
  return stats;
}

Result<MemoryStats> AdaptiveKVCache::memory_usage(SeqId seq) const try {
  TIERKV_ASSIGN_OR_RETURN(auto sequence, impl_->find(seq));
  MemoryStats stats;
  walk_sequence(impl_->env, *sequence, stats, nullptr);
  stats.total_bytes = stats.bookkeeping_bytes + stats.parked_bytes;
  for (const TierMemory& tier : stats.tier) stats.total_bytes += tier.bytes();
  stats.budget_bytes = impl_->config.byte_budget;
  return stats;
}
TIERKV_NO_MEMORY("look at a sequence")

}  // namespace tierkv
