// away.cc — who attends, and the blocks whose bytes only a device has (tiers/away.h): back to host memory when it goes, or when it
// has no room for others.
#include "tiers/away.h"

#include <algorithm>

#include "base/guarded.h"
#include "base/status_macros.h"
#include "cache/impl.h"

namespace tierkv {

using tiers::BlockHandle;
using tiers::BlockRef;
using tiers::HeadStream;
using tiers::Sequence;

namespace {

// What came of it when all blocks were asked back.
struct Homecoming {
  uint64_t lost = 0;    // blocks
  Status why, refused;  // of the last that is lost; resource_exhausted: some did not come for want of memory
};

void bring_home(store::BlockStore& store, BlockHandle block, bool give_up, Homecoming& out) {
  if (!block || !block.away() || store.lost(block)) return;
  Status status = store.bring_back(block);
  if (status.ok()) return;
  if (!give_up && status.code() == StatusCode::resource_exhausted) {
    out.refused = std::move(status);
    return;
  }
  store.give_up(block);
  ++out.lost;
  out.why = std::move(status);
}

// REQUIRES: no call is under way. Blocks that several sequences hold come back for all of them. `give_up`: what finds no room is
// lost.
Homecoming bring_all_home(AdaptiveKVCache::Impl& impl, bool give_up) {
  Homecoming out;
  SeqId last = 0;
  while (const auto sequence = impl.sequence_after(last)) {
    std::lock_guard landed(sequence->mutex);  // what is on its way comes from the one that goes
    sequence->forget_views();
    for (uint32_t l = 0; l < sequence->num_layers() && out.refused.ok(); ++l) {
      for (const HeadStream& s : sequence->heads(l)) {
        for (const BlockRef& ref : s.blocks) {
          bring_home(*impl.store, ref.block, give_up, out);
          bring_home(*impl.store, ref.base, give_up, out);
        }
      }
    }
  }
  return out;
}

}  // namespace

void AdaptiveKVCache::attend_with(std::shared_ptr<const attn::Backend> backend) {
  (void)bring_all_home(*impl_, true);
  impl_->store->set_far(backend && backend->far() ? std::shared_ptr<const FarBytes>(backend, backend->far()) : nullptr);
  impl_->env.backend = backend ? backend.get() : &attn::cpu_backend();
  impl_->backend = std::move(backend);
}

Status AdaptiveKVCache::attend_here() try {
  const Homecoming home = bring_all_home(*impl_, false);
  if (!home.refused.ok()) {
    return error(StatusCode::resource_exhausted, home.refused.message(), "; byte_budget is ", impl_->config.byte_budget,
                 ". Raise it, remove or save a sequence, and detach then: the device stays attached");
  }
  attend_with(nullptr);
  if (home.lost == 0) return {};
  return error(StatusCode::data_loss, home.lost,
               " blocks that the device had alone did not come back and are lost: ", home.why.message(),
               "; remove their sequences, or truncate them");
}
TIERKV_NO_MEMORY("go back to the processor")

bool AdaptiveKVCache::Impl::make_room_on_device(std::span<const SeqId> but) {
  SeqId last = 0;
  while (const auto sequence = sequence_after(last)) {
    if (std::find(but.begin(), but.end(), last) != but.end()) continue;
    std::lock_guard lock(sequence->mutex);
    uint64_t back = 0;
    Status status;
    for (uint32_t l = 0; l < sequence->num_layers() && status.ok(); ++l) {
      for (HeadStream& s : sequence->heads(l)) {
        if (status.ok()) status = tiers::bring_back(env, s, back);
      }
    }
    if (back != 0) return true;
  }
  return false;
}

}  // namespace tierkv
