#include "policy/promotion.h"

#include <algorithm>

namespace tierkv::policy {

PromotionMoves choose_promotions(std::span<const PromotionCandidate> blocks, uint32_t room) {
  PromotionMoves moves;
  std::vector<size_t> stay, come;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const PromotionCandidate& block = blocks[i];
    if (block.promoted) (block.heat < kLeaveHeat ? moves.demote : stay).push_back(i);
    else if (block.has_copy && block.heat >= kEnterHeat) come.push_back(i);
  }
  const auto hotter = [&](size_t a, size_t b) { return blocks[a].heat > blocks[b].heat; };
  std::stable_sort(stay.begin(), stay.end(), hotter);
  std::stable_sort(come.begin(), come.end(), hotter);
  for (const size_t i : come) {
    if (moves.promote.size() == kMostPromoted) break;
    if (stay.size() + moves.promote.size() >= room) {
      if (stay.empty() || blocks[i].heat <= kClearlyHotter * blocks[stay.back()].heat) break;
      moves.demote.push_back(stay.back());
      stay.pop_back();
    }
    moves.promote.push_back(i);
  }
  return moves;
}

}  // namespace tierkv::policy
