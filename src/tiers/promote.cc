// promote.cc — better blocks lie over archived ones: brought back from the cold file, and dropped again.
#include <utility>

#include "base/status_macros.h"
#include "tiers/stream.h"
#include "tiers/summary.h"

namespace tierkv::tiers {
namespace {

bool has_rows_in(const BlockRef& ref, uint32_t first, uint32_t end) {
  for (uint32_t row = 0; row < ref.rows; ++row) {
    if (ref.alive(row) && ref.position(row) >= first && ref.position(row) < end) return true;
  }
  return false;
}

bool can_be_promoted(const BlockRef& ref, uint32_t first, uint32_t end) {
  return ref.block.tier() == Tier::archive && !ref.block.packed() && !ref.promoted() && has_rows_in(ref, first, end);
}

}  // namespace

Promotion::~Promotion() {
  for (const Made& made : made_) env_.store->release(made.fresh);
}

Status Promotion::add(HeadStream& s, uint32_t first, uint32_t end) {
  for (BlockRef& ref : s.blocks) {
    if (!can_be_promoted(ref, first, end)) continue;
    if (!env_.store->copy(ref.block)) {
      ++without_;
      continue;
    }
    if (made_.size() == made_.capacity()) made_.reserve(2 * made_.size() + 16);  // a block that is made has its place
    TIERKV_ASSIGN_OR_RETURN(const BlockHandle fresh, env_.store->restore(ref.block));
    summarise(env_, fresh, ref, s.layer, s.head);
    made_.push_back({&ref, fresh});
    rows_ += ref.live;
  }
  return {};
}

void Promotion::commit() noexcept {
  for (const Made& made : made_) {
    made.ref->base = made.ref->block;
    made.ref->block = made.fresh;
  }
  made_.clear();
}

uint64_t promotion_bytes(const StreamEnv& env, const HeadStream& s, uint32_t first, uint32_t end) {
  uint64_t bytes = 0;
  for (const BlockRef& ref : s.blocks) {
    if (!can_be_promoted(ref, first, end)) continue;
    if (const store::ColdCopy* copy = env.store->copy(ref.block)) bytes += env.store->held_bytes(*copy->codec, ref.block.tier());
  }
  return bytes;
}

uint64_t drop_promoted(const StreamEnv& env, HeadStream& s, uint32_t first, uint32_t end) noexcept {
  uint64_t dropped = 0;
  for (BlockRef& ref : s.blocks) {
    if (!ref.promoted() || !has_rows_in(ref, first, end)) continue;
    env.store->release(ref.block);
    ref.block = std::exchange(ref.base, {});
    ++dropped;
  }
  return dropped;
}

}  // namespace tierkv::tiers
