// stream.cc — the references and arrays that a stream owns: copied, freed.
#include "tiers/stream.h"

#include <algorithm>

namespace tierkv::tiers {

bool clone(const StreamEnv& env, const HeadStream& from, HeadStream& to) {
  to.layer = from.layer;
  to.head = from.head;
  bool ok = to.tail.clone_from(*env.arena, from.tail) && to.blocks.reserve(*env.arena, from.blocks.size());
  for (size_t i = 0; ok && i < from.blocks.size(); ++i) {
    const BlockRef& source = from.blocks[i];
    const uint32_t tokens = source.tokens();
    BlockRef ref = source;
    ref.positions = nullptr;
    ref.stats = nullptr;
    ok = allocate_ref_arrays(env, ref, tokens, source.positions != nullptr, source.stats != nullptr, Arena::Use::normal);
    if (!ok) break;
    if (ref.positions) std::copy_n(source.positions, tokens, ref.positions);
    if (ref.stats) std::copy_n(source.stats, static_cast<size_t>(tokens) * env.signals, ref.stats);
    env.store->retain(ref.block);
    if (ref.base) env.store->retain(ref.base);
    to.blocks.push_reserved(ref);
  }
  if (!ok) destroy(env, to);
  return ok;
}

void destroy(const StreamEnv& env, HeadStream& s) {
  for (BlockRef& ref : s.blocks) release_ref(env, ref);
  s.blocks.reset(*env.arena);
  s.tail.reset(*env.arena);
}

bool allocate_ref_arrays(const StreamEnv& env, BlockRef& ref, uint32_t tokens, bool with_positions, bool with_stats,
                         Arena::Use use) {
  if (with_positions) {
    ref.positions = static_cast<uint32_t*>(env.arena->allocate(tokens * sizeof(uint32_t), MemoryTag::bookkeeping, use));
    if (!ref.positions) return false;
    std::fill_n(ref.positions, tokens, kDeadPosition);
  }
  if (with_stats) {
    ref.stats = static_cast<float*>(
        env.arena->allocate(static_cast<size_t>(tokens) * env.signals * sizeof(float), MemoryTag::bookkeeping, use));
    if (!ref.stats) {
      release_ref_arrays(env, ref, tokens);
      return false;
    }
    std::fill_n(ref.stats, static_cast<size_t>(tokens) * env.signals, 0.0f);
  }
  return true;
}

void release_ref_arrays(const StreamEnv& env, BlockRef& ref, uint32_t tokens) {
  env.arena->release(ref.positions, tokens * sizeof(uint32_t), MemoryTag::bookkeeping);
  env.arena->release(ref.stats, static_cast<size_t>(tokens) * env.signals * sizeof(float), MemoryTag::bookkeeping);
  ref.positions = nullptr;
  ref.stats = nullptr;
}

void release_ref(const StreamEnv& env, BlockRef& ref) {
  release_ref_arrays(env, ref, ref.tokens());
  env.store->release(ref.block);
  if (ref.base) env.store->release(ref.base);
  ref.block = ref.base = {};
}

}  // namespace tierkv::tiers
