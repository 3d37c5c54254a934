#include "bench/data.h"

#include <algorithm>
#include <cmath>

namespace tierkv::bench {

uint64_t Random::next() {
  uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

double Random::uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }

double Random::normal() {
  const double radius = std::sqrt(-2.0 * std::log(uniform()));
  return radius * std::cos(6.283185307179586 * uniform());
}

double Random::student3() {
  const double a = normal(), b = normal(), c = normal();
  // t = z / sqrt(chi2_3 / 3) has variance 3.
  return normal() / std::sqrt((a * a + b * b + c * c) / 3.0) / std::sqrt(3.0);
}

const char* shape_name(Shape shape) {
  switch (shape) {
    case Shape::gaussian: return "gaussian";
    case Shape::heavy: return "heavy";
    case Shape::outlier: return "outlier";
  }
  return "unknown";
}

std::vector<float> make_rows(Shape shape, uint32_t tokens, uint32_t dim, uint64_t seed, uint64_t channel_seed) {
  Random random(seed), channels(channel_seed);
  std::vector<double> mean(dim, 0.0), width(dim, 1.0);
  if (shape == Shape::outlier) {
    for (uint32_t c = 0; c < dim; ++c) {
      mean[c] = channels.normal();
      width[c] = std::exp(0.5 * channels.normal());
    }
    for (uint32_t k = 0; k < std::max(1u, dim / 32); ++k) {
      const uint32_t c = static_cast<uint32_t>(channels.next() % dim);
      mean[c] = 8.0 * (channels.uniform() < 0.5 ? -1.0 : 1.0);
      width[c] = 10.0;
    }
  }
  std::vector<float> rows(static_cast<size_t>(tokens) * dim);
  for (size_t i = 0; i < rows.size(); ++i) {
    const double x = shape == Shape::heavy ? random.student3() : random.normal();
    rows[i] = static_cast<float>(mean[i % dim] + width[i % dim] * x);
  }
  return rows;
}

std::vector<float> make_queries(std::span<const float> keys, uint32_t count, uint32_t dim, double spread, uint64_t seed) {
  Random random(seed);
  std::vector<float> queries(static_cast<size_t>(count) * dim);
  const size_t tokens = keys.size() / dim;
  for (uint32_t i = 0; i < count; ++i) {
    float* q = queries.data() + static_cast<size_t>(i) * dim;
    for (uint32_t c = 0; c < dim; ++c) q[c] = static_cast<float>(random.normal());
    double sum = 0, squares = 0;
    for (size_t t = 0; t < tokens; ++t) {
      double dot = 0;
      for (uint32_t c = 0; c < dim; ++c) dot += static_cast<double>(q[c]) * keys[t * dim + c];
      sum += dot;
      squares += dot * dot;
    }
    const double n = static_cast<double>(tokens);
    const double deviation = std::sqrt(std::max(1e-12, squares / n - (sum / n) * (sum / n)) / dim);
    for (uint32_t c = 0; c < dim; ++c) q[c] = static_cast<float>(q[c] * spread / deviation);
  }
  return queries;
}

std::vector<double> attention_reference(const float* queries, uint32_t count, const float* keys, const float* values,
                                        uint32_t tokens, uint32_t dim, size_t stride) {
  std::vector<double> out(static_cast<size_t>(count) * dim, 0.0), weight(tokens);
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  for (uint32_t i = 0; i < count; ++i) {
    double top = -INFINITY;
    for (uint32_t t = 0; t < tokens; ++t) {
      double dot = 0;
      for (uint32_t c = 0; c < dim; ++c) dot += static_cast<double>(queries[i * dim + c]) * keys[t * stride + c];
      weight[t] = dot * scale;
      top = std::max(top, weight[t]);
    }
    double sum = 0;
    for (double& w : weight) sum += w = std::exp(w - top);
    for (uint32_t t = 0; t < tokens; ++t) {
      const double p = weight[t] / sum;
      for (uint32_t c = 0; c < dim; ++c) out[static_cast<size_t>(i) * dim + c] += p * values[t * stride + c];
    }
  }
  return out;
}

double relative_error(std::span<const float> a, std::span<const double> b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

}  // namespace tierkv::bench
