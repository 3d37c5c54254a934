#include "llama/probe_floor.h"

#include <algorithm>
#include <cmath>

namespace tierkv::llama {

Mean mean_of(const std::vector<double>& samples) {
  const auto n = static_cast<double>(samples.size());
  Mean mean;
  for (const double x : samples) mean.value += x / n;
  for (const double x : samples) mean.error += (x - mean.value) * (x - mean.value);
  mean.error = n > 1.0 ? std::sqrt(mean.error / (n * (n - 1.0))) : mean.value;
  return mean;
}

Floor::Floor(std::span<const Trial> whispers) {
  std::vector<Mean> means;
  for (const Trial& t : whispers) means.push_back(mean_of(t.blocks));
  double noise = 0.0;
  for (const Mean& m : means) noise += m.error * m.error;
  // Polynomials that are orthogonal on the layers measured, one degree after the other, as many as there are points for.
  std::vector<std::vector<double>> rows(whispers.size());
  for (size_t degree = 0; degree < std::min<size_t>(3, whispers.size()); ++degree) {
    Term term;
    std::vector<double> values;
    for (const Trial& t : whispers) values.push_back(std::pow(static_cast<double>(t.layer), static_cast<double>(degree)));
    for (size_t lower = 0; lower < terms_.size(); ++lower) {
      double dot = 0.0, size = 0.0;
      for (size_t i = 0; i < values.size(); ++i) dot += values[i] * rows[i][lower], size += rows[i][lower] * rows[i][lower];
      term.less.push_back(dot / size);
      for (size_t i = 0; i < values.size(); ++i) values[i] -= term.less.back() * rows[i][lower];
    }
    double dot = 0.0, size = 0.0;
    for (size_t i = 0; i < values.size(); ++i) dot += values[i] * means[i].value, size += values[i] * values[i];
    term.weight = dot / size;
    terms_.push_back(term);
    for (size_t i = 0; i < values.size(); ++i) rows[i].push_back(values[i]);
  }
  if (!means.empty()) error_ = std::sqrt(noise * static_cast<double>(terms_.size())) / static_cast<double>(means.size());
}

double Floor::at(uint32_t layer) const {
  std::vector<double> values;
  double sum = 0.0;
  for (size_t degree = 0; degree < terms_.size(); ++degree) {
    double x = std::pow(static_cast<double>(layer), static_cast<double>(degree));
    for (size_t lower = 0; lower < degree; ++lower) x -= terms_[degree].less[lower] * values[lower];
    values.push_back(x);
    sum += terms_[degree].weight * x;
  }
  return std::max(0.0, sum);
}

}  // namespace tierkv::llama
