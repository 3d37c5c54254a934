#include "quant/error_feedback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace tierkv::quant {
namespace {

constexpr uint32_t kDim = 48;

// The identity and a few directions.
std::vector<float> metric_of(uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> metric(kDim * kDim, 0.0f), direction(kDim);
  for (uint32_t c = 0; c < kDim; ++c) metric[c * kDim + c] = 1.0f;
  for (int k = 0; k < 5; ++k) {
    for (float& x : direction) x = normal(rng);
    for (uint32_t a = 0; a < kDim; ++a) {
      for (uint32_t b = 0; b < kDim; ++b) metric[a * kDim + b] += direction[a] * direction[b];
    }
  }
  return metric;
}

double weight(const std::vector<float>& metric, const std::vector<double>& e) {
  double sum = 0.0;
  for (uint32_t a = 0; a < kDim; ++a) {
    for (uint32_t b = 0; b < kDim; ++b) sum += e[a] * e[b] * metric[a * kDim + b];
  }
  return sum;
}

// Errors of rounding to whole numbers, each channel after it was shifted as the rule says.
std::vector<double> errors_of(const ErrorFeedback* feedback, const std::vector<float>& row) {
  std::vector<double> errors(kDim);
  for (uint32_t c = 0; c < kDim; ++c) {
    double wanted = row[c];
    for (uint32_t j = 0; feedback && j < c; ++j) wanted -= feedback->answers(c)[j] * errors[j];
    errors[c] = std::nearbyint(wanted) - row[c];
  }
  return errors;
}

// With what came before fixed, and what comes after free to answer, no other error of a channel is better: the derivative of e'Pe
// along it is 0 when the later channels take their best values. That is what the factors are for; here it is solved directly.
TEST(ErrorFeedback, AnswersAreThoseOfLeastWeight) {
  const std::vector<float> metric = metric_of(1);
  std::vector<float> work = metric;
  const ErrorFeedback feedback(work.data(), kDim);
  std::mt19937 rng(2);
  std::normal_distribution<double> normal;
  std::vector<double> errors(kDim);
  for (double& e : errors) e = normal(rng);
  for (const uint32_t done : {1u, 7u, 30u, kDim - 1}) {
    std::vector<double> best = errors;  // of the channels from `done` on: minimised one after the other until nothing moves
    for (uint32_t c = done; c < kDim; ++c) best[c] = 0.0;
    for (int round = 0; round < 20000; ++round) {
      for (uint32_t c = done; c < kDim; ++c) {
        double slope = 0.0;
        for (uint32_t j = 0; j < kDim; ++j) slope += metric[c * kDim + j] * best[j];
        best[c] -= slope / metric[c * kDim + c];
      }
    }
    double answer = 0.0;
    for (uint32_t j = 0; j < done; ++j) answer -= feedback.answers(done)[j] * errors[j];
    EXPECT_NEAR(answer, best[done], 1e-3) << done;
  }
}

TEST(ErrorFeedback, RoundingWithItWeighsLess) {
  double with = 0.0, without = 0.0;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    const std::vector<float> metric = metric_of(seed);
    std::vector<float> work = metric, row(kDim);
    const ErrorFeedback feedback(work.data(), kDim);
    std::mt19937 rng(100 + seed);
    std::normal_distribution<float> normal(0.0f, 4.0f);
    for (float& x : row) x = normal(rng);
    with += weight(metric, errors_of(&feedback, row));
    without += weight(metric, errors_of(nullptr, row));
  }
  EXPECT_LT(with, 0.4 * without);
}

}  // namespace
}  // namespace tierkv::quant
