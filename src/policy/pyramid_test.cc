#include "policy/pyramid.h"

#include <gtest/gtest.h>

#include <vector>

namespace tierkv::policy {
namespace {

TEST(PyramidBudget, LayerZeroExceedsLayerThree) {
  EXPECT_GT(pyramid_share_001(0, 4, 8), pyramid_share_001(3, 4, 8));
  EXPECT_GT(pyramid_linear_budget(0, 4, 8), pyramid_linear_budget(3, 4, 8));
  EXPECT_GT(pyramidkv_budget(0, 4, 64, 32, 20.0), pyramidkv_budget(3, 4, 64, 32, 20.0));
}

TEST(PyramidBudget, Share001IsTheDocumentsFormula) {
  // Weights 1, 3/4, 1/2, 1/4 sum to 5/2; of 8 tokens: 3.2, 2.4, 1.6, 0.8, each rounded up.
  EXPECT_EQ(pyramid_share_001(0, 4, 8), 4u);
  EXPECT_EQ(pyramid_share_001(1, 4, 8), 3u);
  EXPECT_EQ(pyramid_share_001(2, 4, 8), 2u);
  EXPECT_EQ(pyramid_share_001(3, 4, 8), 1u);
  EXPECT_EQ(pyramid_share_001(0, 0, 8), 8u);  // no layers: the whole length
  EXPECT_EQ(pyramid_share_001(9, 4, 8), 1u);  // past the end: the floor of 1, no underflow
  EXPECT_EQ(pyramid_share_001(2, 4, 0), 1u);
}

TEST(PyramidBudget, LinearFallsInEqualSteps) {
  // Mean 10 over 4 layers: 16, 12, 8, 4.
  EXPECT_EQ(pyramid_linear_budget(0, 4, 10), 16u);
  EXPECT_EQ(pyramid_linear_budget(1, 4, 10), 12u);
  EXPECT_EQ(pyramid_linear_budget(2, 4, 10), 8u);
  EXPECT_EQ(pyramid_linear_budget(3, 4, 10), 4u);
}

TEST(PyramidBudget, PyramidKVRunsFromMaxToMin) {
  // C 232, w 32, beta 20: min 10, max 390, plus the window.
  EXPECT_EQ(pyramidkv_budget(0, 3, 232, 32, 20.0), 422u);
  EXPECT_EQ(pyramidkv_budget(1, 3, 232, 32, 20.0), 232u);
  EXPECT_EQ(pyramidkv_budget(2, 3, 232, 32, 20.0), 42u);
  EXPECT_EQ(pyramidkv_budget(1, 3, 232, 32, 1.0), 232u);  // beta 1 is flat
  EXPECT_EQ(pyramidkv_budget(0, 3, 232, 32, 1.0), 232u);
}

TEST(PyramidBudget, OneLayerGetsEverything) {
  for (const uint32_t budget : {0u, 1u, 5u, 1000u}) {
    EXPECT_EQ(pyramidkv_budget(0, 1, budget, 32, 20.0), budget);
    EXPECT_EQ(pyramid_linear_budget(0, 1, budget), budget);
  }
}

TEST(PyramidBudget, TinyBudgetsKeepTheSumAndNeverReachZero) {
  for (const uint32_t layers : {2u, 3u, 30u, 126u})
    for (uint32_t budget = 1; budget < 70; ++budget) {
      uint64_t linear = 0, paper = 0;
      for (uint32_t l = 0; l < layers; ++l) {
        EXPECT_GE(pyramid_linear_budget(l, layers, budget), 1u);
        EXPECT_GE(pyramidkv_budget(l, layers, budget, 0, 20.0), 1u);
        linear += pyramid_linear_budget(l, layers, budget);
        paper += pyramidkv_budget(l, layers, budget, 0, 20.0);
      }
      EXPECT_EQ(linear, static_cast<uint64_t>(layers) * budget);
      EXPECT_EQ(paper, static_cast<uint64_t>(layers) * budget);
    }
}

TEST(PyramidBudget, BudgetInsideTheWindowIsFlat) {
  for (uint32_t l = 0; l < 8; ++l) EXPECT_EQ(pyramidkv_budget(l, 8, 20, 32, 20.0), 20u);
}

TEST(PyramidBudget, NonsenseSteepnessIsFlatAndEnds) {
  EXPECT_EQ(pyramidkv_budget(0, 8, 200, 32, 0.0), 200u);
  EXPECT_EQ(pyramidkv_budget(7, 8, 200, 32, -3.0), 200u);
  EXPECT_EQ(pyramidkv_budget(7, 8, 200, 32, __builtin_nan("")), 200u);
}

}  // namespace
}  // namespace tierkv::policy
