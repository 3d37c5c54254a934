#include "cache/look_back.h"

#include <algorithm>

#include "base/guarded.h"
#include "policy/promotion.h"

namespace tierkv::cache {
namespace {

using policy::PromotionCandidate;
using tiers::BlockHeat;
using tiers::HeadStream;
using tiers::Sequence;

constexpr float kCold = 0.001f;  // such heat is not remembered

// Both lists are in order of head and position.
void update(std::vector<BlockHeat>& known, std::span<const BlockMass> seen, uint32_t rows) {
  std::vector<BlockHeat> now;
  auto old = known.begin();
  for (const BlockMass& block : seen) {
    if (block.tier != Tier::archive) continue;
    while (old != known.end() && old->before(block.kv_head, block.first_position)) ++old;
    const bool same = old != known.end() && old->head == block.kv_head && old->first_position == block.first_position;
    const float heat = policy::next_heat(same ? old->heat : 0.0f, static_cast<float>(block.mass / rows));
    if (heat >= kCold) now.push_back({block.kv_head, block.first_position, heat});
  }
  known.swap(now);
}

float heat_of(std::span<const BlockHeat> known, uint32_t head, uint32_t position) {
  const auto at =
      std::find_if(known.begin(), known.end(), [&](const BlockHeat& b) { return b.head == head && b.first_position == position; });
  return at == known.end() ? 0.0f : at->heat;
}

// One block, by the position of its first live row.
void promote_at(AdaptiveKVCache::Impl& impl, HeadStream& s, uint32_t position) {
  tiers::Promotion promotion(impl.env);
  if (promotion.add(s, position, position + 1).ok()) promotion.commit();
}

void move_blocks(AdaptiveKVCache::Impl& impl, HeadStream& s, std::span<const BlockHeat> known) {
  std::vector<PromotionCandidate> candidates;
  std::vector<uint32_t> positions;
  const tiers::BlockList& blocks = s.blocks;  // to look at: what is not changed keeps its version
  for (const tiers::BlockRef& ref : blocks) {
    if (ref.block.tier() != Tier::archive || ref.block.packed() || ref.live == 0) continue;
    const bool promoted = ref.promoted();
    const bool has_copy = !promoted && store::ColdFile::usable(impl.store->copy(ref.block));
    if (!promoted && !has_copy) continue;
    candidates.push_back({heat_of(known, s.head, ref.first_position), promoted, has_copy});
    positions.push_back(ref.first_live_position());
  }
  const policy::PromotionMoves moves = policy::choose_promotions(candidates, impl.config.cold.promote);
  for (const size_t i : moves.demote) (void)tiers::drop_promoted(impl.env, s, positions[i], positions[i] + 1);
  for (const size_t i : moves.promote) promote_at(impl, s, positions[i]);
}

}  // namespace

bool looks_back(const AdaptiveKVCache::Impl& impl, Sequence& sequence, uint32_t layer, uint32_t queries) {
  if (impl.config.cold.promote == 0 || queries > kMostLookingQueries || impl.planner->shape(layer).window != 0) return false;
  if (impl.env.backend->remembers()) return false;  // a device would hand the whole call to the processor
  tiers::LayerHeat& heat = sequence.heat(layer);
  if (++heat.calls < kLookEvery) return false;
  heat.calls = 0;
  return true;
}

void look_back(AdaptiveKVCache::Impl& impl, Sequence& sequence, uint32_t layer, std::span<const BlockMass> blocks,
               uint32_t rows) noexcept {
  (void)with_memory([&] {
    std::vector<BlockHeat>& known = sequence.heat(layer).blocks;
    update(known, blocks, rows);
    for (HeadStream& s : sequence.heads(layer)) move_blocks(impl, s, known);
    return true;
  });
}

bool drop_promoted(AdaptiveKVCache::Impl& impl, SeqId seq) noexcept {
  if (impl.config.cold.promote == 0) return false;
  uint64_t dropped = 0;
  (void)with_memory([&] {
    const auto found = impl.find(seq);
    if (!found.ok()) return false;
    Sequence& sequence = **found;
    std::lock_guard lock(sequence.mutex);
    for (uint32_t l = 0; l < sequence.num_layers(); ++l) {
      sequence.heat(l).blocks.clear();
      for (HeadStream& s : sequence.heads(l)) dropped += tiers::drop_promoted(impl.env, s, 0, tiers::kDeadPosition);
    }
    return true;
  });
  return dropped != 0;
}

}  // namespace tierkv::cache
