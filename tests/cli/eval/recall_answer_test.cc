// recall_answer_test.cc — the digit mask, and probabilities under it.
#include "recall_answer.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tierkv::cli {
namespace {

//                                        0    1    2    3     4     5       6    7     8     9   10     11      12
const std::vector<std::string> kPieces = {"a", "1", "2", " 3", "45", "1234", " ", "7.", "  ", "", "9a", "\n8", "123456"};
using Allowed = std::vector<llama_token>;

TEST(DigitMask, BeginsWithASpaceOrADigit) {
  const DigitMask mask(kPieces);
  EXPECT_EQ(mask.allowed("", 5), (Allowed{1, 2, 3, 4, 5, 6}));
}

TEST(DigitMask, GoesOnWithDigitsAlone) {
  const DigitMask mask(kPieces);
  EXPECT_EQ(mask.allowed(" ", 5), (Allowed{1, 2, 4, 5}));  // one space, not two
  EXPECT_EQ(mask.allowed(" 9", 5), (Allowed{1, 2, 4, 5}));
  EXPECT_EQ(mask.allowed("9", 5), (Allowed{1, 2, 4, 5}));
}

TEST(DigitMask, NeverSaysMoreDigitsThanAskedFor) {
  const DigitMask mask(kPieces);
  EXPECT_EQ(mask.allowed(" 99", 5), (Allowed{1, 2, 4}));
  EXPECT_EQ(mask.allowed(" 9999", 5), (Allowed{1, 2}));
  EXPECT_EQ(mask.allowed(" 99999", 5), Allowed{});
  EXPECT_EQ(mask.allowed("", 1), (Allowed{1, 2, 3, 6}));
  EXPECT_EQ(mask.allowed("", 6), (Allowed{1, 2, 3, 4, 5, 6, 12}));
}

TEST(DigitMask, AllowsNothingBehindWords) { EXPECT_EQ(DigitMask(kPieces).allowed(" the", 5), Allowed{}); }

TEST(Probability, IsASoftmaxOverWhatIsAllowed) {
  const std::vector<float> logits = {5.0f, 1.0f, 2.0f, 0.5f};
  const Allowed allowed = {1, 2};
  double all = 0.0;
  for (llama_token t = 0; t < 4; ++t) all += std::exp(log_probability(logits, t));
  EXPECT_NEAR(all, 1.0, 1e-12);
  EXPECT_NEAR(std::exp(log_probability(logits, 1, allowed)) + std::exp(log_probability(logits, 2, allowed)), 1.0, 1e-12);
  EXPECT_NEAR(log_probability(logits, 2, allowed) - log_probability(logits, 1, allowed), 1.0, 1e-12);
  EXPECT_EQ(std::exp(log_probability(logits, 0, allowed)), 0.0);
  EXPECT_EQ(likeliest(logits), 0);
  EXPECT_EQ(likeliest(logits, allowed), 2);
}

TEST(Probability, StandsLargeLogits) {
  const std::vector<float> logits = {3e4f, 3e4f, -3e4f};
  EXPECT_NEAR(log_probability(logits, 0), -std::log(2.0), 1e-12);
}

}  // namespace
}  // namespace tierkv::cli
