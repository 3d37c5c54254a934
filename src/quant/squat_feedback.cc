#include "quant/squat_feedback.h"

#include <cmath>

namespace tierkv::quant {

namespace {

// Solves a·x = b in place of b by Cholesky's method; a is r x r, symmetric, its eigenvalues at least 1, and is overwritten.
void factor(std::vector<double>& a, uint32_t r) {
  for (uint32_t i = 0; i < r; ++i) {
    for (uint32_t j = 0; j <= i; ++j) {
      double sum = a[static_cast<size_t>(i) * r + j];
      for (uint32_t k = 0; k < j; ++k) sum -= a[static_cast<size_t>(i) * r + k] * a[static_cast<size_t>(j) * r + k];
      a[static_cast<size_t>(i) * r + j] = i == j ? std::sqrt(sum > 1e-12 ? sum : 1e-12) : sum / a[static_cast<size_t>(j) * r + j];
    }
  }
}

void solve(const std::vector<double>& a, uint32_t r, std::vector<double>& b) {
  for (uint32_t i = 0; i < r; ++i) {
    for (uint32_t k = 0; k < i; ++k) b[i] -= a[static_cast<size_t>(i) * r + k] * b[k];
    b[i] /= a[static_cast<size_t>(i) * r + i];
  }
  for (uint32_t i = r; i-- > 0;) {
    for (uint32_t k = i + 1; k < r; ++k) b[i] -= a[static_cast<size_t>(k) * r + i] * b[k];
    b[i] /= a[static_cast<size_t>(i) * r + i];
  }
}

}  // namespace

SquatFeedback::SquatFeedback(std::span<const float> directions, uint32_t head_dim, uint32_t step)
    : rank_(static_cast<uint32_t>(directions.size() / head_dim)),
      step_(step),
      columns_(directions.size()),
      answers_(directions.size()) {
  const uint32_t r = rank_, d = head_dim;
  for (uint32_t c = 0; c < d; ++c) {
    for (uint32_t k = 0; k < r; ++k) columns_[static_cast<size_t>(c) * r + k] = directions[static_cast<size_t>(k) * d + c];
  }
  // From the last step to the first: what is left grows by one step's channels each time.
  std::vector<double> left(static_cast<size_t>(r) * r), a, b(r);
  for (uint32_t k = 0; k < r; ++k) left[static_cast<size_t>(k) * r + k] = 1.0;
  for (uint32_t end = d; end > 0;) {
    const uint32_t begin = (end - 1) / step * step;
    for (uint32_t c = begin; c < end; ++c) {
      const float* x = direction(c);
      for (uint32_t i = 0; i < r; ++i) {
        for (uint32_t j = 0; j < r; ++j) left[static_cast<size_t>(i) * r + j] += static_cast<double>(x[i]) * x[j];
      }
    }
    a = left;
    factor(a, r);
    for (uint32_t c = begin; c < end; ++c) {
      for (uint32_t k = 0; k < r; ++k) b[k] = direction(c)[k];
      solve(a, r, b);
      for (uint32_t k = 0; k < r; ++k) answers_[static_cast<size_t>(c) * r + k] = static_cast<float>(b[k]);
    }
    end = begin;
  }
}

}  // namespace tierkv::quant
