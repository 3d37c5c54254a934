#include "tiers/away.h"

#include <algorithm>

#include "base/status_macros.h"

namespace tierkv::tiers {
namespace {

bool may_go(const BlockRef& ref, bool warm) {
  const Tier tier = ref.block.tier();
  return ref.block.resident() && !ref.promoted() && ref.block.references() == 1 &&
         (tier == Tier::archive || (warm && tier == Tier::warm));
}

}  // namespace

void send_away(const StreamEnv& env, const HeadStream& s, bool warm, StreamViews& views) noexcept {
  if (views.version == 0 || views.version != s.blocks.drawn_version()) return;
  size_t v = 0;
  for (const BlockRef& ref : s.blocks) {
    if (ref.block.spilled()) continue;
    attn::BlockView& view = views.views[v++];
    if (!may_go(ref, warm) || !env.store->send_away(ref.block)) continue;
    view = view_of(env, ref, s.layer, s.head);
    views.away = true;
  }
  views.sent_away = views.version;
}

Status bring_back(const StreamEnv& env, HeadStream& s, uint64_t& back) {
  const BlockList& now = s.blocks;
  const auto ours = [&](const BlockRef& ref) {
    return ref.block.away() && ref.block.references() == 1 && !env.store->lost(ref.block);
  };
  if (std::none_of(now.begin(), now.end(), ours)) return {};  // what is not changed keeps its version
  for (BlockRef& ref : s.blocks) {
    if (!ours(ref)) continue;
    TIERKV_RETURN_IF_ERROR(env.store->bring_back(ref.block));
    ++back;
  }
  return {};
}

}  // namespace tierkv::tiers
