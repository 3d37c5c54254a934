#include "bench/shapes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "bench/data.h"

namespace tierkv::bench {

SourceRows make_source(const AttentionShape& shape, uint32_t period) {
  SourceRows rows{shape, period, {}, {}};
  rows.keys = make_rows(Shape::outlier, period * shape.kv_heads, shape.head_dim, 31);
  rows.values = make_rows(Shape::gaussian, period * shape.kv_heads, shape.head_dim, 41);
  return rows;
}

std::vector<float> make_source_queries(const SourceRows& rows, uint32_t count) {
  // A prime number of different ones: neighbouring heads and queries never repeat in step.
  constexpr uint32_t kDistinct = 61;
  const uint32_t dim = rows.shape.head_dim;
  const size_t sample = std::min<size_t>(rows.keys.size(), size_t{512} * dim);
  const std::vector<float> base = make_queries(std::span(rows.keys).first(sample), kDistinct, dim, 2.0, 61);
  std::vector<float> queries(static_cast<size_t>(count) * rows.shape.heads * dim);
  for (size_t i = 0; i < queries.size() / dim; ++i) std::memcpy(&queries[i * dim], &base[i % kDistinct * dim], dim * sizeof(float));
  return queries;
}

std::vector<double> exact_attention(const SourceRows& rows, const float* query, uint32_t head, uint32_t length) {
  const uint32_t dim = rows.shape.head_dim;
  const size_t at = static_cast<size_t>(head / rows.shape.group()) * dim;
  const uint32_t distinct = std::min(rows.period, length);
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  std::vector<double> weight(distinct), out(dim, 0.0);
  double top = -INFINITY, sum = 0;
  for (uint32_t t = 0; t < distinct; ++t) {
    double dot = 0;
    for (uint32_t c = 0; c < dim; ++c) dot += static_cast<double>(query[c]) * rows.key(t)[at + c];
    weight[t] = dot * scale;
    top = std::max(top, weight[t]);
  }
  for (uint32_t t = 0; t < distinct; ++t) {
    const uint32_t times = length / rows.period + (t < length % rows.period ? 1 : 0);
    weight[t] = times * std::exp(weight[t] - top);
    sum += weight[t];
    for (uint32_t c = 0; c < dim; ++c) out[c] += weight[t] * rows.value(t)[at + c];
  }
  for (double& x : out) x /= sum;
  return out;
}

}  // namespace tierkv::bench
