// wait.cc — tokens that wait for tables (tierkv/learning.h) take twice the room of an archive: when a byte budget has none left,
// waiting is over, and as much fits as without it, but for a block or two: lists of blocks that were longer stay so.
#include <algorithm>

#include "cache/impl.h"

namespace tierkv {

using plan::LayerPlan;
using tiers::Sequence;

// One archive block of every head that has one due. What finds no room stays where it is and is due again.
void AdaptiveKVCache::Impl::settle_once() noexcept {
  SeqId last = 0;
  while (const std::shared_ptr<Sequence> sequence = sequence_after(last)) {
    std::lock_guard lock(sequence->mutex);
    if (!sequence->packed.empty()) continue;
    for (uint32_t l = 0; l < sequence->num_layers(); ++l) {
      LayerPlan plan = planner->layer(l, sequence->layer(l).length);
      choose_archive(*sequence, l, plan);
      for (tiers::HeadStream& s : sequence->heads(l)) (void)tiers::settle(env, s, plan, 1);
    }
  }
}

bool AdaptiveKVCache::Impl::end_waiting() noexcept {
  if (!planner->waiting()) return false;
  planner->set_waiting(false);
  // The oldest of all heads first: they lie side by side, and what they leave is large enough for the next.
  for (size_t before = arena->allocated(MemoryTag::warm), now = 0;; before = now) {
    settle_once();
    now = arena->allocated(MemoryTag::warm);
    if (now >= before) break;
  }
  arena->trim();
  return true;
}

void AdaptiveKVCache::Impl::keep_room_to_archive(uint32_t tokens) noexcept {
  if (config.byte_budget == 0 || !planner->waiting()) return;
  const Arena::Books books = arena->books();
  const uint64_t rows = 2ull * tokens * config.num_kv_heads * config.head_dim * sizeof(uint16_t);
  // All that waits must fit a second time, as an archive: archive blocks that have to go into the holes of warm ones leave gaps
  // that fit nothing, and then less would fit than without waiting.
  const double warm = static_cast<double>(books.allocated[static_cast<int>(MemoryTag::warm)]);
  const auto archived = static_cast<uint64_t>(warm * planner->now()->archive_share());
  const uint64_t spare = std::max<uint64_t>(config.byte_budget / 16, 4 * static_cast<uint64_t>(largest_block));
  if (books.mapped - books.free_bytes + rows + archived + spare > config.byte_budget) (void)end_waiting();
}

}  // namespace tierkv
