// evict.cc — rows die: evicted in place, with thinned-out neighbours merged, or fallen out of a window.
#include <algorithm>

#include "base/guarded.h"
#include "tiers/seal.h"
#include "tiers/stream.h"

namespace tierkv::tiers {
namespace {

void kill_rows(BlockRef& ref, const uint8_t* keep) {
  for (uint32_t row = 0, i = 0; row < ref.rows; ++row) {
    if (!ref.alive(row)) continue;
    if (!keep[i++]) {
      ref.positions[row] = kDeadPosition;
      --ref.live;
    }
  }
  while (ref.rows && !ref.alive(ref.rows - 1u)) --ref.rows;
}

// Rewrites the live rows of `count` neighbours as one block less. False: they do not fit, or there is no memory: then they just
// keep theirs.
bool merge_run(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, size_t first, size_t count) {
  if (first + count > s.blocks.size()) return false;
  const Tier tier = s.blocks[first].block.tier();
  const CodecEntry* codec = tier == Tier::warm ? plan.warm_of(s.head) : plan.archive(s.head);
  const CodecEntry* raw = tier == Tier::warm ? plan.raw_warm : plan.raw_archive;
  if (tier == Tier::sink || !codec) return false;
  uint64_t live = 0;
  for (size_t i = first; i < first + count; ++i) {
    if (s.blocks[i].block.tier() != tier) return false;
    live += s.blocks[i].live;
  }
  if (live > (count - 1) * codec->tokens) return false;

  BlockRef fresh[2];
  size_t made = 0;
  const auto make = [&] {
    RowBatch all;
    for (size_t i = first; i < first + count; ++i) all.add_live_rows(env, s.blocks[i], s.layer, s.head);
    for (uint32_t from = 0; from < all.rows(); from += codec->tokens) {
      RowBatch& batch = scratch_batch();
      batch.add_rows(env, all, from, std::min(codec->tokens, all.rows() - from));
      const CodecEntry* const source = s.blocks[first].block.codec();
      auto ref = seal(env, {&batch, codec, raw, tier, source, s.layer, s.head, nullptr, false, {}}, Arena::Use::relief);
      if (!ref) return false;
      fresh[made++] = *ref;
    }
    return true;
  };
  if (!with_memory(make)) {
    while (made) release_ref(env, fresh[--made]);
    return false;
  }
  for (size_t i = first; i < first + count; ++i) release_ref(env, s.blocks[i]);
  std::copy_n(fresh, made, s.blocks.begin() + first);
  s.blocks.erase(first + made, count - made);
  return true;
}

// Two neighbours that fit one block, or three that fit two, are rewritten: eviction that drops a few rows everywhere would
// otherwise free nothing until every block is half dead. Each rewrite re-encodes rows, so it is not done for less.
void merge_neighbours(const StreamEnv& env, HeadStream& s, const LayerPlan& plan) {
  for (size_t i = 0; i + 1 < s.blocks.size();) {
    if (!merge_run(env, s, plan, i, 2) && !merge_run(env, s, plan, i, 3)) ++i;
  }
}

}  // namespace

void expire(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, uint32_t position) {
  const uint64_t reach = static_cast<uint64_t>(plan.window) - 1 + plan.slack;
  if (position <= reach) return;
  const uint32_t oldest = static_cast<uint32_t>(position - reach);
  const BlockList& now = s.blocks;  // to look at: what is not changed keeps its version
  size_t gone = 0;
  while (gone < now.size() && now[gone].position(now[gone].rows - 1u) < oldest) release_ref(env, s.blocks[gone++]);
  s.blocks.erase(0, gone);
  if (!plan.ring) return;
  uint32_t rows = 0;
  while (rows < s.tail.rows() && s.tail.position(rows) < oldest) ++rows;
  if (rows) s.tail.drop_front(rows);
}

bool evict_rows(const StreamEnv& env, HeadStream& s, const LayerPlan& plan, std::span<const uint8_t> keep) {
  const auto all_kept = [&](size_t from, size_t count) {
    return std::all_of(keep.begin() + static_cast<ptrdiff_t>(from), keep.begin() + static_cast<ptrdiff_t>(from + count),
                       [](uint8_t k) { return k; });
  };
  // First everything that can fail: lists for the blocks and the tail that lose rows.
  size_t at = 0;
  for (BlockRef& ref : s.blocks) {
    if (!ref.positions && !all_kept(at, ref.live)) {
      const uint32_t tokens = ref.tokens();
      ref.positions =
          static_cast<uint32_t*>(env.arena->allocate(tokens * sizeof(uint32_t), MemoryTag::bookkeeping, Arena::Use::relief));
      if (!ref.positions) return false;
      for (uint32_t row = 0; row < tokens; ++row) ref.positions[row] = row < ref.rows ? ref.first_position + row : kDeadPosition;
    }
    at += ref.live;
  }
  const bool tail_loses = !all_kept(at, s.tail.rows());
  if (tail_loses && !(s.tail.reserve(*env.arena, 0, plan.tail_bound(), Arena::Use::relief) && s.tail.reserve_positions(*env.arena)))
    return false;

  at = 0;
  size_t to = 0;
  for (size_t i = 0; i < s.blocks.size(); ++i) {
    BlockRef ref = s.blocks[i];
    const size_t live = ref.live;
    if (!all_kept(at, live)) kill_rows(ref, keep.data() + at);
    at += live;
    if (ref.live == 0) {
      release_ref(env, ref);
    } else {
      s.blocks[to++] = ref;
    }
  }
  s.blocks.resize_down(to);
  if (tail_loses) s.tail.keep(keep.subspan(at));
  if (env.moves) {
    const auto gone = static_cast<uint64_t>(std::count(keep.begin(), keep.end(), uint8_t{0}));
    env.moves->evicted.fetch_add(gone, std::memory_order_relaxed);
  }
  merge_neighbours(env, s, plan);
  return true;
}

}  // namespace tierkv::tiers
