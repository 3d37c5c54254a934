#include "policy/promotion.h"

#include <gtest/gtest.h>

namespace tierkv::policy {
namespace {

using Indices = std::vector<size_t>;

TEST(Promotion, HotBlocksComeHottestFirstAndFewAtATime) {
  std::vector<PromotionCandidate> blocks(12);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = {0.04f + 0.01f * static_cast<float>(i), false, true};
  const PromotionMoves moves = choose_promotions(blocks, 100);
  EXPECT_EQ(moves.promote, (Indices{11, 10, 9, 8}));
  EXPECT_TRUE(moves.demote.empty());
}

TEST(Promotion, ABlockWithoutACopyOrBelowTheBoundStays) {
  const PromotionCandidate blocks[] = {{0.9f, false, false}, {0.049f, false, true}, {0.05f, false, true}};
  EXPECT_EQ(choose_promotions(blocks, 8).promote, (Indices{2}));
}

TEST(Promotion, BetweenTheBoundsNothingMoves) {
  const PromotionCandidate blocks[] = {{0.02f, true, true}, {0.02f, false, true}};
  const PromotionMoves moves = choose_promotions(blocks, 8);
  EXPECT_TRUE(moves.promote.empty());
  EXPECT_TRUE(moves.demote.empty());
}

TEST(Promotion, WhatNobodyLooksAtGoes) {
  const PromotionCandidate blocks[] = {{0.01f, true, true}, {0.0f, true, false}, {0.3f, true, true}};
  EXPECT_EQ(choose_promotions(blocks, 8).demote, (Indices{0, 1}));
}

TEST(Promotion, AClearlyHotterBlockTakesThePlaceOfTheColdest) {
  const PromotionCandidate blocks[] = {{0.2f, true, true}, {0.1f, true, true}, {0.14f, false, true}};
  EXPECT_TRUE(choose_promotions(blocks, 2).promote.empty()) << "hotter, but not clearly";
  const PromotionCandidate hotter[] = {{0.2f, true, true}, {0.1f, true, true}, {0.16f, false, true}};
  const PromotionMoves moves = choose_promotions(hotter, 2);
  EXPECT_EQ(moves.promote, (Indices{2}));
  EXPECT_EQ(moves.demote, (Indices{1}));
}

// Heat that swings around the first bound does not move a block twice.
TEST(Promotion, ASwingingBlockComesOnce) {
  PromotionCandidate block{0.0f, false, true};
  int moved = 0;
  for (int look = 0; look < 100; ++look) {
    block.heat = next_heat(block.heat, look % 2 == 0 ? 0.12f : 0.02f);
    const PromotionMoves moves = choose_promotions({&block, 1}, 4);
    moved += static_cast<int>(moves.promote.size() + moves.demote.size());
    if (!moves.promote.empty()) block.promoted = true;
    if (!moves.demote.empty()) block.promoted = false;
  }
  EXPECT_EQ(moved, 1);
}

TEST(Promotion, NoRoomMovesNothing) {
  const PromotionCandidate blocks[] = {{0.9f, false, true}};
  EXPECT_TRUE(choose_promotions(blocks, 0).promote.empty());
}

}  // namespace
}  // namespace tierkv::policy
