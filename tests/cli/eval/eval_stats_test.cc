// eval_stats_test.cc — the numbers of `tierkv ppl` against ones computed by hand or in plain double precision.
#include "eval_stats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace tierkv::cli {
namespace {

// log of probabilities, shifted: what a softmax makes of it are the probabilities again.
std::vector<float> logits_of(std::initializer_list<double> probabilities, double shift = 0.0) {
  std::vector<float> row;
  for (const double p : probabilities) row.push_back(static_cast<float>(std::log(p) + shift));
  return row;
}

double plain_log_sum_exp(const std::vector<float>& row) {
  double top = -INFINITY, sum = 0.0;
  for (const float x : row) top = std::max(top, static_cast<double>(x));
  for (const float x : row) sum += std::exp(static_cast<double>(x) - top);
  return top + std::log(sum);
}

TEST(EvalStats, LogSumExpOfUniformRowIsTheLogOfItsSize) {
  for (const size_t size : {1u, 7u, 16u, 17u, 384u, 49152u}) {
    const RowSummary summary = summarise(std::vector<float>(size, 3.0f));
    EXPECT_NEAR(summary.log_sum_exp, 3.0 + std::log(static_cast<double>(size)), 2e-6) << size;
    EXPECT_EQ(summary.top, 0u);
  }
}

TEST(EvalStats, LogSumExpAndDivergenceAgreeWithDoublePrecision) {
  std::mt19937 random(7);
  std::normal_distribution<float> noise;
  for (int round = 0; round < 20; ++round) {
    const size_t size = 1000 + random() % 3000;
    std::vector<float> p(size), q(size);
    const float spread = round % 2 ? 8.0f : 1.0f;
    for (size_t i = 0; i < size; ++i) p[i] = spread * noise(random) - 40.0f, q[i] = p[i] + 0.1f * noise(random);
    ReferenceRow reference;
    reference.set(p);
    const RowSummary other = summarise(q);
    const double lp = plain_log_sum_exp(p), lq = plain_log_sum_exp(q);
    EXPECT_NEAR(reference.summary().log_sum_exp, lp, 2e-6) << "round " << round;
    EXPECT_NEAR(other.log_sum_exp, lq, 2e-6) << "round " << round;
    double kl = 0.0;
    for (size_t i = 0; i < size; ++i) kl += std::exp(p[i] - lp) * ((p[i] - lp) - (q[i] - lq));
    EXPECT_NEAR(reference.divergence(q, other), kl, 2e-6) << "round " << round;
  }
}

TEST(EvalStats, DivergenceOfTwoCoins) {
  ReferenceRow fair;
  fair.set(logits_of({0.5, 0.5}));
  const std::vector<float> loaded = logits_of({0.9, 0.1}, 5.0);
  // 0.5 ln(0.5/0.9) + 0.5 ln(0.5/0.1)
  EXPECT_NEAR(fair.divergence(loaded, summarise(loaded)), 0.5108256, 1e-6);
  EXPECT_NEAR(fair.nll(1), 0.6931472, 1e-6);
  EXPECT_EQ(summarise(loaded).top, 0u);
}

TEST(EvalStats, SameRowHasNoDivergenceAtAll) {
  std::mt19937 random(3);
  std::vector<float> row(5003);
  for (float& x : row) x = static_cast<float>(random() % 1000) / 50.0f;
  ReferenceRow reference;
  reference.set(row);
  EXPECT_EQ(reference.divergence(row, summarise(row)), 0.0);
}

TEST(EvalStats, LogitsThatAreNoNumbersShow) {
  std::vector<float> row(100, 1.0f);
  row[50] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(summarise(row).log_sum_exp));
  row[50] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(std::isfinite(summarise(row).log_sum_exp));
}

TEST(EvalStats, PairedErrorByHand) {
  // Two blocks of two tokens. nll: {1, 2}, {3, 2}; reference: {1, 1}, {2, 2}. Means 2 and 1.5.
  PairedScores scores;
  scores.add(0, 1.0, 1.0, 0.1, true);
  scores.add(0, 2.0, 1.0, 0.3, false);
  scores.add(1, 3.0, 2.0, 0.1, true);
  scores.add(1, 2.0, 2.0, 0.1, true);
  const PairedResult result = scores.result();
  const double ppl = std::exp(2.0), reference = std::exp(1.5);
  EXPECT_EQ(result.tokens, 4u);
  EXPECT_EQ(result.blocks, 2u);
  EXPECT_NEAR(result.ppl, ppl, 1e-12);
  EXPECT_NEAR(result.delta, ppl - reference, 1e-12);
  EXPECT_NEAR(result.kld, 0.15, 1e-12);
  EXPECT_NEAR(result.top1, 0.75, 1e-12);
  // z_b = ppl·{3, 5} − reference·{2, 4}: the blocks are ∓(ppl − reference) from their mean, so se = sqrt(2·2)·(ppl − reference)/4.
  EXPECT_NEAR(result.delta_se, (ppl - reference) / 2.0, 1e-12);
  // nll sums 3 and 5 around 4: sqrt(2·2)/4·ppl.
  EXPECT_NEAR(result.ppl_se, ppl / 2.0, 1e-12);
  // KL sums 0.4 and 0.2 around 0.3: sqrt(2·0.02)/4.
  EXPECT_NEAR(result.kld_se, 0.05, 1e-12);
}

TEST(EvalStats, EqualScoresHaveNoDifferenceAndNoError) {
  PairedScores scores;
  for (int i = 0; i < 100; ++i) scores.add(static_cast<size_t>(i / 10), 0.1 * i, 0.1 * i, 0.0, true);
  EXPECT_EQ(scores.result().delta, 0.0);
  EXPECT_EQ(scores.result().delta_se, 0.0);
  EXPECT_GT(scores.result().ppl_se, 0.0);
}

TEST(EvalStats, OneBlockHasNoError) {
  PairedScores scores;
  scores.add(5, 1.0, 0.9, 0.0, true);
  EXPECT_EQ(scores.result().blocks, 1u);
  EXPECT_TRUE(std::isnan(scores.result().delta_se));
  EXPECT_EQ(PairedScores().result().tokens, 0u);
}

// The error must cover what it claims: over many texts the true difference lies within two errors about 95 times in 100, even
// though tokens of a block share most of their noise.
TEST(EvalStats, PairedErrorCoversCorrelatedTokens) {
  std::mt19937 random(11);
  std::normal_distribution<double> noise;
  constexpr int kTexts = 400, kBlocks = 40, kTokens = 32;
  constexpr double kShift = 0.02;
  int covered = 0;
  for (int text = 0; text < kTexts; ++text) {
    PairedScores scores;
    for (int b = 0; b < kBlocks; ++b) {
      const double shared = 0.05 * noise(random);
      for (int t = 0; t < kTokens; ++t) {
        const double reference = 2.0 + 0.5 * noise(random);
        scores.add(static_cast<size_t>(b), reference + kShift + shared + 0.02 * noise(random), reference, 0.0, true);
      }
    }
    const PairedResult result = scores.result();
    const double truth = (result.ppl - result.delta) * std::expm1(kShift);
    covered += std::fabs(result.delta - truth) <= 2.0 * result.delta_se;
  }
  EXPECT_GT(covered, kTexts * 90 / 100);
  EXPECT_LT(covered, kTexts * 99 / 100);
}

TEST(EvalStats, QuantilesLieBetweenTheirNeighbours) {
  EXPECT_DOUBLE_EQ(quantile({3, 1, 2}, 0.5), 2.0);
  EXPECT_DOUBLE_EQ(quantile({4, 1, 2, 3}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile({1, 2, 3, 4, 5}, 0.99), 4.96);
  EXPECT_DOUBLE_EQ(quantile({7}, 0.99), 7.0);
  EXPECT_DOUBLE_EQ(quantile({}, 0.5), 0.0);
}

}  // namespace
}  // namespace tierkv::cli
