// kmeans.h — weighted k-means of numbers, solved exactly.
//
// On a line the clusters of the best answer are runs of the sorted points, so a dynamic programme over where runs end finds it: no
// starting guess, no luck, the same answer every time. The best end of a run moves right with the point it serves, which halves the
// search at every step (divide and conquer): k·n·log n.
// Threads:  a pure function.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tierkv::solve {

struct WeightedPoint {
  double x = 0.0;
  double weight = 0.0;
};

// The k centres, ascending, that minimise the sum of weight·(x - nearest centre)². Fewer than k points: the last centre is
// repeated. REQUIRES: 1 <= k <= 256; at least one point; x ascending and finite; weights finite and above zero; fewer than 65536
// points.
std::vector<double> kmeans_on_a_line(std::span<const WeightedPoint> points, uint32_t k);

}  // namespace tierkv::solve
