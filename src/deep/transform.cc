#include "deep/transform.h"

#include <algorithm>
#include <cmath>

#include "base/f16.h"
#include "base/per_thread.h"

namespace tierkv::deep {
namespace {

// 2^e for |e| <= 60, exactly.
float power_of_two(int e) { return std::ldexp(1.0f, e); }

}  // namespace

Transform::Transform(const calib::DeepTables& tables, const calib::DeepLayer& layer, bool analysis)
    : tables_(&tables), layer_(&layer), dim_(tables.dim()) {
  const size_t n = dim_, d = tables.head_dim;
  for (const float unit : layer.unit) per_unit_.push_back(1.0f / unit);
  for (int b = 0; b < 2; ++b) {
    const calib::DeepBasis& basis = layer.basis[b];
    if (basis.empty()) continue;
    rows_[b].resize(n * n);
    for (size_t j = 0; j < n; ++j) {
      const float unit = power_of_two(basis.exponent[j]);
      for (size_t c = 0; c < n; ++c) rows_[b][j * n + c] = f16_to_f32(basis.rows[j * n + c]) * unit;
    }
    if (!analysis) continue;
    // A component is what its row and the vector have in common in the metric.
    analysis_[b].assign(n * n, 0.0f);
    std::vector<float> row(d);
    for (size_t j = 0; j < n; ++j) {
      for (size_t part = 0; part < n / d; ++part) {
        const float* m = layer.metric.data() + part * d * d;
        const float* from = rows_[b].data() + j * n + part * d;
        std::fill(row.begin(), row.end(), 0.0f);
        for (size_t a = 0; a < d; ++a) {
          for (size_t c = 0; c < d; ++c) row[c] += from[a] * m[a * d + c];
        }
        for (size_t c = 0; c < d; ++c) analysis_[b][(part * d + c) * n + j] = row[c];
      }
    }
  }
}

void Transform::predict(const int16_t* const* sources, uint32_t tokens, float* out) const {
  struct Sums {
    std::vector<int64_t> of_components;
  };
  std::vector<int64_t>& sums = per_thread<Sums>().of_components;
  const size_t n = dim_;
  sums.assign(tokens * n, 0);
  const Kernels& k = kernels();
  for (uint32_t s = 0; s < layer_->sources; ++s) k.dots(layer_->predict.data() + s * n * n, sources[s], dim_, tokens, sums.data());
  for (uint32_t t = 0; t < tokens; ++t) {
    for (size_t c = 0; c < n; ++c) {
      out[t * n + c] = static_cast<float>(static_cast<double>(layer_->scale[c]) * static_cast<double>(sums[t * n + c]));
    }
  }
}

void Transform::as_source(const float* centred, uint32_t tokens, int16_t* out) const {
  const size_t n = dim_;
  for (uint32_t t = 0; t < tokens; ++t) {
    for (size_t c = 0; c < n; ++c) {
      const float scaled =
          std::min(32767.0f, std::max(-32767.0f, centred[t * n + c] * per_unit_[c]));  // in this order NaN is a number too
      out[t * n + c] = static_cast<int16_t>(static_cast<int32_t>(scaled + (scaled < 0.0f ? -0.5f : 0.5f)));
    }
  }
}

void Transform::add_levels(int basis, const LevelBlock& block, float step, int32_t log_step, uint32_t finer,
                           const Centroids& centroids, float* rows) const {
  struct Terms {
    std::vector<Term> of_block;
  };
  std::vector<Term>& terms = per_thread<Terms>().of_block;
  uint32_t counts[kCodingBlock] = {};
  const size_t n = dim_;
  terms.resize(kCodingBlock * n);
  const int16_t* spread = layer_->basis[basis].spread.data();
  float steps[kCodingBlock];
  for (uint32_t t = 0; t < block.tokens; ++t) steps[t] = class_step(step, block.classes[t], finer);
  for (uint32_t j = 0; j < block.alive; ++j) {
    const int32_t* levels = block.levels.data() + static_cast<size_t>(j) * kCodingBlock;
    for (uint32_t t = 0; t < block.tokens; ++t) {
      if (levels[t] == 0) continue;
      const int32_t ratio = spread[j] - log_step + 128 * kClassWeight[block.classes[t]] + 256 * static_cast<int32_t>(finer);
      terms[t * n + counts[t]++] = {j, steps[t] * centroids.value(levels[t], Centroids::ratio_index(ratio))};
    }
  }
  const Kernels& k = kernels();
  for (uint32_t t = 0; t < block.tokens; ++t)
    k.synthesise(terms.data() + t * n, counts[t], rows_[basis].data(), dim_, rows + t * n);
}

void Transform::analyse(int basis, const float* rows, uint32_t tokens, float* out) const {
  kernels().analyse(rows, analysis_[basis].data(), dim_, tokens, out);
}

double Transform::metric_energy(const float* rows, uint32_t tokens) const {
  const size_t n = dim_, d = tables_->head_dim;
  std::vector<float> product(d);
  double sum = 0.0;
  for (uint32_t t = 0; t < tokens; ++t) {
    for (size_t part = 0; part < n / d; ++part) {
      const float* m = layer_->metric.data() + part * d * d;
      const float* x = rows + t * n + part * d;
      std::fill(product.begin(), product.end(), 0.0f);
      for (size_t a = 0; a < d; ++a) {
        for (size_t c = 0; c < d; ++c) product[c] += x[a] * m[a * d + c];
      }
      float dot = 0.0f;
      for (size_t c = 0; c < d; ++c) dot += product[c] * x[c];
      sum += static_cast<double>(dot);
    }
  }
  return sum;
}

}  // namespace tierkv::deep
