#include "solve/kmeans.h"

#include <algorithm>
#include <limits>

namespace tierkv::solve {

namespace {

class Line {
 public:
  explicit Line(std::span<const WeightedPoint> points) : sums_(points.size() + 1) {
    // Around the middle of the points, so that the differences of squares below keep their digits.
    middle_ = 0.5 * (points.front().x + points.back().x);
    for (size_t i = 0; i < points.size(); ++i) {
      const double x = points[i].x - middle_, w = points[i].weight;
      sums_[i + 1] = {sums_[i].w + w, sums_[i].wx + w * x, sums_[i].wxx + w * x * x};
    }
  }

  // Of points [from, to) around their own mean.
  double cost(size_t from, size_t to) const {
    const double w = sums_[to].w - sums_[from].w, wx = sums_[to].wx - sums_[from].wx, wxx = sums_[to].wxx - sums_[from].wxx;
    return std::max(0.0, wxx - wx * wx / w);
  }
  double mean(size_t from, size_t to) const { return middle_ + (sums_[to].wx - sums_[from].wx) / (sums_[to].w - sums_[from].w); }

 private:
  struct Sums {
    double w = 0, wx = 0, wxx = 0;
  };
  std::vector<Sums> sums_;
  double middle_ = 0;
};

// Extends the best answers for one cluster fewer: after[j] is the least cost of points [0, j), start[j] where its last cluster
// begins.
struct Step {
  const Line& line;
  uint32_t clusters;  // with the one being added
  const std::vector<double>& before;
  std::vector<double>& after;
  std::vector<uint16_t>& start;

  // Answers for j in [low, high], knowing that their last clusters begin in [from, to].
  void solve(size_t low, size_t high, size_t from, size_t to) const {
    if (low > high) return;
    const size_t j = low + (high - low) / 2;
    double least = std::numeric_limits<double>::infinity();
    size_t best = from;
    for (size_t i = std::max<size_t>(from, clusters - 1); i <= std::min(to, j - 1); ++i) {
      const double cost = before[i] + line.cost(i, j);
      if (cost < least) least = cost, best = i;
    }
    after[j] = least;
    start[j] = static_cast<uint16_t>(best);
    if (j > low) solve(low, j - 1, from, best);
    solve(j + 1, high, best, to);
  }
};

}  // namespace

std::vector<double> kmeans_on_a_line(std::span<const WeightedPoint> points, uint32_t k) {
  const size_t n = points.size();
  const uint32_t clusters = static_cast<uint32_t>(std::min<size_t>(k, n));
  const Line line(points);
  std::vector<double> before(n + 1), after(n + 1);
  std::vector<std::vector<uint16_t>> starts(clusters, std::vector<uint16_t>(n + 1));
  for (size_t j = 1; j <= n; ++j) before[j] = line.cost(0, j);
  for (uint32_t c = 1; c < clusters; ++c) {
    Step{line, c + 1, before, after, starts[c]}.solve(c + 1, n, c, n - 1);
    std::swap(before, after);
  }
  std::vector<double> centres(clusters);
  size_t end = n;
  for (uint32_t c = clusters; c-- > 0;) {
    const size_t begin = starts[c][end];
    centres[c] = line.mean(begin, end);
    end = begin;
  }
  centres.resize(k, centres.back());
  return centres;
}

}  // namespace tierkv::solve
