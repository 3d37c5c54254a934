#include "serve/pace.h"

#include <gtest/gtest.h>

namespace tierkv::serve {
namespace {

TEST(Pace, PromptsAloneFillABatch) { EXPECT_EQ(Pace(16, 256).rows(0), 256u); }

TEST(Pace, BesideAnswersThereIsOnePieceUntilMoreIsKnown) {
  EXPECT_EQ(Pace(16, 256).rows(3), 16u);
  EXPECT_EQ(Pace(16, 256).rows(250), 0u);  // no room for a piece
  EXPECT_EQ(Pace(16, 256).rows(256), 0u);
}

// After many steps a step with prompts takes no more than kStretch times one without, as far as pieces allow.
TEST(Pace, PromptsGetWhatStretchesAStepThatMuch) {
  for (const double row_s : {0.0005, 0.002, 0.02}) {
    Pace pace(4, 256);
    const double plain_s = 0.02;
    for (int i = 0; i < 200; ++i) {
      const uint32_t rows = i % 8 == 0 ? 0 : pace.rows(2);
      pace.took(2, rows, plain_s + rows * row_s);
    }
    const double step = plain_s + pace.rows(2) * row_s;
    const double most = std::max(Pace::kStretch * plain_s, plain_s + 4 * row_s);
    EXPECT_LE(step, 1.05 * most) << row_s;
    EXPECT_GE(step, 0.8 * std::min(most, plain_s + 252 * row_s)) << row_s;
  }
}

TEST(Pace, OneSlowStepDoesNotCountForMuch) {
  Pace pace(4, 256);
  for (int i = 0; i < 50; ++i) {
    pace.took(1, 0, 0.02);
    pace.took(1, 8, 0.02 + 8 * 0.002);
  }
  const uint32_t before = pace.rows(1);
  pace.took(1, 8, 30.0);
  EXPECT_GE(2 * pace.rows(1), before);
}

}  // namespace
}  // namespace tierkv::serve
