// Tests of what comes of learning: tables beside those of every pair and every key.
#include "solve/klt.h"

#include <gtest/gtest.h>

#include "learn/check.h"
#include "learn/testing.h"

namespace tierkv::learn {
namespace {

// The tables of one head from every pair and every key, in double, without shrinking.
calib::KltHead exact_head(const Text& text, uint32_t head, const LearnSettings& settings) {
  const calib::Turner turner(text.rope, kDim);
  std::vector<float> rows;
  std::vector<double> mean(kDim, 0.0), covariance(kDim * kDim, 0.0);
  for (uint32_t t = settings.sinks; t < text.n; ++t) {
    std::vector<float> row(kDim);
    for (uint32_t c = 0; c < kDim; ++c) row[c] = static_cast<float>(text.key(t, head, c));
    turner.turn(row.data(), 1, -static_cast<int64_t>(calib::block_start(t, settings.sinks, settings.block)), row.data());
    rows.insert(rows.end(), row.begin(), row.end());
  }
  const double n = static_cast<double>(rows.size() / kDim);
  for (size_t i = 0; i < rows.size(); ++i) mean[i % kDim] += rows[i] / n;
  for (size_t from = 0; from < rows.size(); from += kDim) {
    for (uint32_t r = 0; r < kDim; ++r) {
      for (uint32_t c = 0; c < kDim; ++c) covariance[r * kDim + c] += (rows[from + r] - mean[r]) * (rows[from + c] - mean[c]) / n;
    }
  }
  const std::vector<double> metric = text.metric(head, settings, {});
  solve::KltMoments moments;
  moments.dim = kDim;
  moments.mean = mean, moments.covariance = covariance, moments.metric = metric, moments.rows = rows;
  return solve::solve_klt_head(moments, "exact").value();
}

// What an archive with these tables does to another text, in that text's own metric.
double error_on(const Text& text, const std::shared_ptr<const calib::Calibration>& tables, const LearnSettings& settings) {
  const calib::Turner turner(text.rope, kDim);
  double sum = 0.0;
  for (uint32_t h = 0; h < kKvHeads; ++h) {
    HeldOutHead rows;
    for (uint32_t t = settings.sinks; t < text.n; ++t) {
      std::vector<float> row(kDim);
      for (uint32_t c = 0; c < kDim; ++c) row[c] = static_cast<float>(text.key(t, h, c));
      turner.turn(row.data(), 1, -static_cast<int64_t>(calib::block_start(t, settings.sinks, settings.block)), row.data());
      rows.keys.insert(rows.keys.end(), row.begin(), row.end());
      rows.values.insert(rows.values.end(), kDim, 0.0f);
    }
    rows.metric = text.metric(h, settings, {});
    sum += held_out_errors(tables, 0, h, rows).value().calibrated;
  }
  return sum;
}

TEST(LearnerSolve, TablesAreAsGoodAsThoseOfEveryPair) {
  auto synthetic = small_model();
  const Text text(synthetic, 0, 1300, 0.6f), other(synthetic, 0, 700, 0.6f);
  LearnSettings settings = small_settings();
  settings.query_stride = 8;
  settings.sample_tokens = 700;  // so that the sample is thinned
  const auto learner = make_learner(learn_model(synthetic), settings);
  text.feed(*learner, 0, 0);
  ASSERT_TRUE(learner->ready());
  LearnCheck check;
  const auto learnt = learner->solve("synthetic", {}, &check);
  ASSERT_TRUE(learnt.ok()) << learnt.status().message();
  EXPECT_LT(check.calibrated, kMostOfUncalibrated * check.uncalibrated);
  EXPECT_EQ((*learnt)->origin.tokens, 1300u);

  calib::KltTables tables;
  tables.layers = 1, tables.kv_heads = kKvHeads, tables.head_dim = kDim;
  for (uint32_t h = 0; h < kKvHeads; ++h) {
    tables.heads.push_back(exact_head(text, h, settings));
    tables.heads.back().value_distortion = (*learnt)->klt->heads[h].value_distortion;  // so that both give keys the same bits
  }
  const auto exact = std::make_shared<calib::Calibration>();
  exact->model = (*learnt)->model;
  exact->block = settings.block, exact->sinks = settings.sinks, exact->distance = settings.distance;
  exact->ropes = (*learnt)->ropes;
  exact->klt = std::make_shared<const calib::KltTables>(std::move(tables));
  ASSERT_TRUE(exact->finish().ok());
  EXPECT_LT(error_on(other, *learnt, settings), 1.1 * error_on(other, exact, settings));
}

}  // namespace
}  // namespace tierkv::learn
