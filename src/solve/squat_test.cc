#include "solve/squat.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "calib/synthetic_statistics.h"

namespace tierkv::solve {

using namespace calib;

namespace {

const Statistics& statistics() {
  static const Statistics s = SyntheticModel({2, 4, 2, 32, 16, 6, true}).statistics();
  return s;
}

TEST(Squat, DirectionsGiveBackTheGramOfQueries) {
  const uint32_t d = 32;
  const SquatTables t = solve_squat(statistics(), nullptr, {d, 0.5}).value();
  const PairSums& sums = statistics().pair_sums(1, 0);
  const std::span<const float> rows = t.of(1, 0);
  for (uint32_t a = 0; a < d; ++a) {
    for (uint32_t b = 0; b < d; ++b) {
      double product = 0;
      for (uint32_t k = 0; k < d; ++k) product += static_cast<double>(rows[k * d + a]) * rows[k * d + b];
      EXPECT_NEAR(product, 0.5 * sums.queries[a * d + b] / static_cast<double>(sums.query_count), 1e-4);
    }
  }
}

TEST(Squat, TheLongestDirectionsComeFirst) {
  const uint32_t d = 32;
  const SquatTables t = solve_squat(statistics(), nullptr, {6, 1.0}).value();
  EXPECT_EQ(t.rank, 6u);
  double last = std::numeric_limits<double>::infinity();
  for (uint32_t k = 0; k < t.rank; ++k) {
    double square = 0;
    for (uint32_t c = 0; c < d; ++c) square += std::pow(t.of(0, 1)[k * d + c], 2);
    EXPECT_LT(square, last);
    EXPECT_GT(square, 0.0);
    last = square;
  }
  EXPECT_EQ(solve_squat(statistics(), nullptr, {500, 1.0}).value().rank, d);
}

std::vector<std::byte> written(const SquatTables& t) {
  ByteWriter out;
  t.write(out);
  return out.bytes();
}

Result<SquatTables> read(std::span<const std::byte> bytes, const ModelId& model) {
  ByteReader in(bytes);
  return SquatTables::read(in, model);
}

TEST(Squat, TablesComeBackFromTheirBytesAndDamagedOnesDoNot) {
  const SquatTables t = solve_squat(statistics(), nullptr).value();
  const std::vector<std::byte> bytes = written(t);
  const auto back = read(bytes, statistics().model);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->directions, t.directions);
  for (size_t size = 0; size < bytes.size(); size += 97) EXPECT_FALSE(read(std::span(bytes).first(size), statistics().model).ok());
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    SquatTables damaged = t;
    damaged.directions[200] = bad;
    EXPECT_EQ(read(written(damaged), statistics().model).status().code(), StatusCode::data_loss);
  }
  SquatTables damaged = t;
  damaged.rank = 33;
  EXPECT_FALSE(read(written(damaged), statistics().model).ok());
  ModelId other = statistics().model;
  other.layers = 3;
  EXPECT_EQ(read(bytes, other).status().code(), StatusCode::invalid_argument);
}

TEST(Squat, StatisticsThatSayNothingAreRefused) {
  const auto refused = [](auto&& spoil) {
    Statistics s = statistics();
    spoil(s);
    EXPECT_FALSE(solve_squat(s, nullptr).ok());
  };
  refused([](Statistics& s) { s.pairs[2].queries[40] = std::nan(""); });
  refused([](Statistics& s) { s.pairs[2].queries.pop_back(); });
  refused([](Statistics& s) { s.pairs.clear(); });
  refused([](Statistics& s) {
    for (PairSums& sums : s.pairs) sums.query_count = 0;
  });
  EXPECT_FALSE(solve_squat(statistics(), nullptr, {0, 1.0}).ok());
  EXPECT_FALSE(solve_squat(statistics(), nullptr, {8, std::nan("")}).ok());
}

}  // namespace
}  // namespace tierkv::solve
