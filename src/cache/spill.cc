// spill.cc — when byte_budget is short and `spill` allows it, archive blocks go to the cold file before anything is refused.
#include "tiers/spill.h"

#include <algorithm>

#include "base/guarded.h"
#include "cache/impl.h"

namespace tierkv {

using tiers::HeadStream;
using tiers::Sequence;

namespace {

// A part of the budget is made free at a time: every call that lacks memory is tried again from its start.
constexpr uint64_t kShare = 16;

// The oldest of all heads in turn, a block of each, so that they stay as far as each other.
bool spill_sequence(AdaptiveKVCache::Impl& impl, Sequence& sequence, uint64_t wanted, uint64_t& freed) {
  std::lock_guard lock(sequence.mutex);
  if (!sequence.packed.empty()) return true;
  for (bool any = true; any && freed < wanted;) {
    any = false;
    for (uint32_t l = 0; l < sequence.num_layers(); ++l) {
      if (impl.planner->shape(l).window != 0) continue;  // what leaves the window is dropped anyway
      for (HeadStream& s : sequence.heads(l)) {
        const uint64_t before = freed;
        if (!tiers::spill_oldest(impl.env, s, freed + 1, freed).ok()) return false;  // the file's fault: no use in going on
        any |= freed != before;
      }
    }
  }
  return true;
}

}  // namespace

bool AdaptiveKVCache::Impl::make_room_by_spilling(SeqId seq, uint64_t needed) noexcept {
  if (spill.kind == config::SpillMode::Kind::off) return false;
  const uint64_t wanted = std::max(2 * needed, config.byte_budget / kShare);
  uint64_t freed = 0;
  (void)with_memory([&] {
    bool works = true;
    if (const auto own = find(seq); own.ok()) works = spill_sequence(*this, **own, wanted, freed);
    SeqId last = 0;
    while (works && freed < wanted) {
      const auto other = sequence_after(last);
      if (!other) break;
      if (last != seq) works = spill_sequence(*this, *other, wanted, freed);
    }
    return works;
  });
  return freed != 0;
}

}  // namespace tierkv
