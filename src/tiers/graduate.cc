// graduate.cc — rows become older: from the tail into sinks and warm blocks, from warm blocks into the archive.
#include "base/guarded.h"
#include "tiers/row_batch.h"
#include "tiers/stream.h"

namespace tierkv::tiers {
namespace {

bool push_block(const StreamEnv& env, HeadStream& s, BlockRef ref, Arena::Use use) {
  if (s.blocks.push_back(*env.arena, ref, use)) return true;
  release_ref(env, ref);
  return false;
}

// The first tokens of the sequence leave the tail for good, in the tail's own precision.
bool extract_sinks(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, Arena::Use use) {
  RowBatch& batch = scratch_batch();
  batch.add_tail(env, s.tail, plan.sinks);
  auto ref = seal(env, batch, *plan.sink_codec, *plan.sink_codec, Tier::sink, nullptr, s.layer, s.head, use);
  if (!ref || !push_block(env, s, *ref, use)) return false;
  s.tail.drop_front(plan.sinks);
  env.count_graduated(Tier::sink, plan.sinks);
  return true;
}

bool wants_sinks(const HeadStream& s, const LayerPlan& plan) {
  return plan.sinks && s.blocks.empty() && s.tail.rows() && s.tail.position(0) == 0;
}

bool graduate(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, Arena::Use use) {
  const uint32_t block = plan.first_block();
  if (plan.ring || plan.hot == kAll || block == 0) return true;
  const Tier tier = plan.warm ? Tier::warm : Tier::archive;
  if (wants_sinks(s, plan)) {
    if (s.tail.rows() < static_cast<uint64_t>(plan.hot) + block + plan.sinks) return true;
    if (!extract_sinks(env, s, plan, use)) return false;
  }
  while (s.tail.rows() >= static_cast<uint64_t>(plan.hot) + block) {
    RowBatch& batch = scratch_batch();
    batch.add_tail(env, s.tail, block);
    const CodecEntry& raw = plan.warm ? *plan.raw_warm : *plan.raw_archive;
    auto ref = seal(env, batch, *plan.first_codec(s.head), raw, tier, nullptr, s.layer, s.head, use, plan.guide(s.head));
    if (!ref) return false;
    if (tier == Tier::archive && plan.window == 0) copy_behind(env, batch, *ref);
    if (!push_block(env, s, *ref, use)) return false;
    s.tail.drop_front(block);
    env.count_graduated(tier, block);
  }
  return true;
}

// The oldest warm blocks that together fill one archive block become it. Blocks that eviction or truncation left short may make it
// short.
bool demote(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, uint32_t most, Arena::Use use) {
  if (plan.warm == kAll || plan.warm == 0 || plan.waiting) return true;
  const uint32_t target = plan.archive_codec->tokens;
  const BlockList& now = s.blocks;  // to look at: what is not changed keeps its version
  for (uint32_t made = 0;; ++made) {
    size_t first = 0;
    while (first < now.size() && now[first].block.tier() != Tier::warm) ++first;
    uint64_t warm = 0;
    for (size_t i = first; i < now.size(); ++i) warm += now[i].live;
    if (warm < static_cast<uint64_t>(plan.warm) + target || made == most) return true;
    RowBatch& batch = scratch_batch();
    size_t last = first;
    while (last < now.size() && batch.rows() + now[last].live <= target) {
      batch.add_live_rows(env, now[last++], s.layer, s.head);
    }
    if (last == first) return true;  // a warm block larger than an archive block (an older configuration's): it stays
    if (batch.rows()) {
      auto ref =
          seal(env, batch, *plan.archive(s.head), *plan.raw_archive, Tier::archive, now[first].block.codec(), s.layer, s.head, use);
      if (!ref) return false;
      if (plan.window == 0) copy_behind(env, batch, *ref);
      env.count_graduated(Tier::archive, batch.rows());
      release_ref(env, s.blocks[first]);
      s.blocks[first++] = *ref;
    }
    for (size_t i = first; i < last; ++i) release_ref(env, s.blocks[i]);
    s.blocks.erase(first, last - first);
  }
}

}  // namespace

bool settle(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, uint32_t most, Arena::Use use) {
  // Each block is made whole before anything of the stream changes, so that there is nothing to undo.
  return with_memory([&] { return graduate(env, s, plan, use) && demote(env, s, plan, most, use); });
}

bool due_for_archive(const StreamEnv& env, const HeadStream& s, const LayerPlan& plan, RowBatch& batch) {
  batch.clear();
  if (plan.ring || plan.hot == kAll || plan.warm == kAll || plan.waiting) return false;
  const uint32_t target = plan.archive_codec->tokens, block = plan.first_block(), sinks = wants_sinks(s, plan) ? plan.sinks : 0;
  size_t i = 0;
  while (i < s.blocks.size() && s.blocks[i].block.tier() != Tier::warm) ++i;
  uint64_t warm = 0;
  for (size_t b = i; b < s.blocks.size(); ++b) warm += s.blocks[b].live;
  const uint64_t stays = static_cast<uint64_t>(plan.hot) + sinks, tail = s.tail.rows();
  const uint64_t graduates = tail > stays ? (tail - stays) / block * block : 0;
  if (warm + graduates < static_cast<uint64_t>(plan.warm) + target) return false;
  for (; i < s.blocks.size() && batch.rows() + s.blocks[i].live <= target; ++i) {
    batch.add_live_rows(env, s.blocks[i], s.layer, s.head);
  }
  if (const uint32_t more = target - batch.rows(); more && i == s.blocks.size()) {
    RowBatch& front = scratch_batch();
    front.add_tail(env, s.tail, sinks + more);
    batch.add_rows(env, front, sinks, more);
  }
  return batch.rows() != 0;
}

}  // namespace tierkv::tiers
