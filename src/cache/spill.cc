// spill.cc — when byte_budget is short and `spill` allows it, archive blocks go to the cold file before anything is refused.
#include "tiers/spill.h"

#include <algorithm>

#include "base/guarded.h"
#include "base/status_macros.h"
#include "cache/impl.h"
#include "cache/pressure.h"

namespace tierkv {

using tiers::HeadStream;
using tiers::Sequence;

namespace {

// A part of the budget is made free at a time: every call that lacks memory is tried again from its start.
constexpr uint64_t kShare = 16;

// The oldest of all heads in turn, a block of each, so that they stay as far as each other.
// The status is the file's: when it is not OK there is no use in going on.
Status spill_sequence(AdaptiveKVCache::Impl& impl, Sequence& sequence, uint64_t wanted, uint64_t& freed) {
  std::lock_guard lock(sequence.mutex);
  if (!sequence.packed.empty()) return {};
  for (bool any = true; any && freed < wanted;) {
    any = false;
    for (uint32_t l = 0; l < sequence.num_layers(); ++l) {
      if (impl.planner->shape(l).window != 0) continue;  // what leaves the window is dropped anyway
      for (HeadStream& s : sequence.heads(l)) {
        const uint64_t before = freed;
        TIERKV_RETURN_IF_ERROR(tiers::spill_oldest(impl.env, s, freed + 1, freed));
        any |= freed != before;
      }
    }
  }
  return {};
}

}  // namespace

namespace cache {

Status not_spilled(const Status& refused, const Status& file) {
  const bool disk = file.code() == StatusCode::io_error;
  return error(refused.code(), refused.message(), ". Archive blocks could not be spilled to make room: ", file.message(),
               disk ? "; the cold file could not grow: make room on its disk, or name another place with `cold`" : "");
}

}  // namespace cache

bool AdaptiveKVCache::Impl::make_room_by_spilling(SeqId seq, uint64_t needed, Status& file) noexcept {
  if (spill.kind == config::SpillMode::Kind::off) return false;
  const uint64_t wanted = std::max(2 * needed, config.byte_budget / kShare);
  uint64_t freed = 0;
  (void)with_memory([&] {
    if (const auto own = find(seq); own.ok()) file = spill_sequence(*this, **own, wanted, freed);
    SeqId last = 0;
    while (file.ok() && freed < wanted) {
      const auto other = sequence_after(last);
      if (!other) break;
      if (last != seq) file = spill_sequence(*this, *other, wanted, freed);
    }
    return true;
  });
  return freed != 0;
}

}  // namespace tierkv
