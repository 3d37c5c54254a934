#include "solve/kmeans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace tierkv::solve {
namespace {

double cost(const std::vector<WeightedPoint>& points, const std::vector<double>& centres) {
  double sum = 0;
  for (const WeightedPoint& p : points) {
    double least = std::numeric_limits<double>::infinity();
    for (double c : centres) least = std::min(least, (p.x - c) * (p.x - c));
    sum += p.weight * least;
  }
  return sum;
}

std::vector<WeightedPoint> random_points(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> weight(0.1, 5.0);
  std::vector<WeightedPoint> points(n);
  for (WeightedPoint& p : points) p = {normal(rng), weight(rng)};
  std::sort(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.x < b.x; });
  return points;
}

// Every way to cut the points into runs.
double least_cost_by_trying(const std::vector<WeightedPoint>& points, size_t from, uint32_t k) {
  double least = std::numeric_limits<double>::infinity();
  for (size_t to = from + 1; to <= points.size(); ++to) {
    if (k == 1 && to != points.size()) continue;
    double w = 0, wx = 0, here = 0;
    for (size_t i = from; i < to; ++i) w += points[i].weight, wx += points[i].weight * points[i].x;
    for (size_t i = from; i < to; ++i) here += points[i].weight * std::pow(points[i].x - wx / w, 2);
    if (to == points.size()) least = std::min(least, here);
    else least = std::min(least, here + least_cost_by_trying(points, to, k - 1));
  }
  return least;
}

TEST(Kmeans, IsTheBestOfAllWaysToCut) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    const std::vector<WeightedPoint> points = random_points(11, seed);
    for (uint32_t k : {1u, 2u, 3u, 4u}) {
      const std::vector<double> centres = kmeans_on_a_line(points, k);
      ASSERT_EQ(centres.size(), k);
      ASSERT_TRUE(std::is_sorted(centres.begin(), centres.end()));
      ASSERT_NEAR(cost(points, centres), least_cost_by_trying(points, 0, k), 1e-9) << "seed " << seed << " k " << k;
    }
  }
}

TEST(Kmeans, NoSmallMoveOfACentreHelps) {
  const std::vector<WeightedPoint> points = random_points(3000, 7);
  for (uint32_t k : {4u, 8u, 16u}) {
    const std::vector<double> centres = kmeans_on_a_line(points, k);
    const double least = cost(points, centres);
    for (uint32_t c = 0; c < k; ++c) {
      for (double move : {-0.02, 0.02}) {
        std::vector<double> moved = centres;
        moved[c] += move;
        ASSERT_GT(cost(points, moved), least) << k << " centres, centre " << c;
      }
    }
  }
}

TEST(Kmeans, FewPointsAreTheirOwnCentres) {
  const std::vector<WeightedPoint> points = {{-1.0, 1.0}, {0.5, 2.0}, {2.0, 0.1}};
  const std::vector<double> centres = kmeans_on_a_line(points, 4), want = {-1.0, 0.5, 2.0, 2.0};
  ASSERT_EQ(centres.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(centres[i], want[i], 1e-12);
}

}  // namespace
}  // namespace tierkv::solve
