// truncate.cc — the newest rows are forgotten; sinks that are cut into go back to the tail.
#include "tiers/stream.h"

namespace tierkv::tiers {
namespace {

bool has_sinks(const HeadStream& s) { return !s.blocks.empty() && s.blocks[0].block.tier() == Tier::sink; }

}  // namespace

bool prepare_truncate(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, uint32_t length) {
  if (!has_sinks(s) || length >= plan.sinks) return true;
  return s.tail.reserve(*env.arena, plan.sinks, plan.tail_bound());
}

void truncate(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, uint32_t length) {
  s.tail.truncate(length);
  while (!s.blocks.empty() && s.blocks.back().first_live_position() >= length) {
    release_ref(env, s.blocks.back());
    s.blocks.resize_down(s.blocks.size() - 1);
  }
  if (!s.blocks.empty()) {
    BlockRef& ref = s.blocks.back();
    while (ref.rows && (!ref.alive(ref.rows - 1u) || ref.position(ref.rows - 1u) >= length)) {
      if (ref.alive(ref.rows - 1u)) --ref.live;
      --ref.rows;
    }
  }
  if (has_sinks(s) && length < plan.sinks && s.tail.can_push_front(s.blocks[0].rows) && s.blocks.size() == 1 &&
      !s.blocks[0].positions && s.tail.first_position() == s.blocks[0].rows) {
    // Fewer tokens than sinks are left: back to the tail, so that the tokens that come next can become sinks too. A sequence that
    // was loaded from a cache with other sinks may have a gap or blocks in between; its sinks stay as they are.
    BlockRef ref = s.blocks[0];
    {
      const Pin pin(*env.store, ref.block);
      const auto* keys = reinterpret_cast<const uint16_t*>(pin.keys().data());
      const auto* values = reinterpret_cast<const uint16_t*>(pin.values().data());
      s.tail.push_front(ref.rows, keys, values, ref.stats);
    }
    release_ref(env, ref);
    s.blocks.resize_down(0);
  }
}

}  // namespace tierkv::tiers
