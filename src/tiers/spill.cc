#include "tiers/spill.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "quant/key_box.h"
#include "tiers/summary.h"

namespace tierkv::tiers {
namespace {

bool can_be_spilled(const BlockRef& ref) {
  return ref.block.tier() == Tier::archive && ref.block.resident() && !ref.promoted() && ref.block.references() == 1;
}

}  // namespace

Status spill_oldest(const StreamEnv& env, HeadStream& s, uint64_t wanted, uint64_t& freed) {
  std::vector<std::byte> summary(quant::box_bytes(env.head_dim));
  for (BlockRef& ref : s.blocks) {
    if (freed >= wanted) break;
    if (!can_be_spilled(ref)) continue;
    if (const std::byte* there = summary_of(env, ref.block)) std::copy_n(there, summary.size(), summary.begin());
    else make_summary(env, ref.block, ref, s.layer, s.head, summary.data());
    TIERKV_RETURN_IF_ERROR(env.store->spill(ref.block, summary));
    freed += env.store->held_bytes(*ref.block.codec(), ref.block.tier());
  }
  return {};
}

}  // namespace tierkv::tiers
