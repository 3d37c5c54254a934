#include "calib/deep.h"

#include <algorithm>
#include <cmath>

namespace tierkv::calib {

std::vector<double> deep_weight_features(const DeepTables& tables, const DeepLayer& layer, const float* x, const float* centred) {
  const uint32_t d = tables.head_dim, heads = tables.kv_heads, dim = tables.dim();
  std::vector<double> f(1 + dim + 3 * static_cast<size_t>(heads));
  f[0] = 1.0;
  for (uint32_t c = 0; c < dim; ++c) f[1 + c] = centred[c];
  for (uint32_t h = 0; h < heads; ++h) {
    const float *k = x + static_cast<size_t>(h) * d, *v = x + static_cast<size_t>(heads + h) * d;
    const float* m = layer.metric.data() + static_cast<size_t>(h) * d * d;
    double kk = 0.0, vv = 0.0, kmk = 0.0;
    for (uint32_t a = 0; a < d; ++a) {
      kk += static_cast<double>(k[a]) * k[a];
      vv += static_cast<double>(v[a]) * v[a];
      double row = 0.0;
      for (uint32_t b = 0; b < d; ++b) row += static_cast<double>(m[static_cast<size_t>(a) * d + b]) * k[b];
      kmk += row * k[a];
    }
    f[1 + dim + 3 * h] = std::log(std::max(kk, 1e-30));
    f[2 + dim + 3 * h] = std::log(std::max(kmk, 1e-30));
    f[3 + dim + 3 * h] = std::log(std::max(vv, 1e-30));
  }
  return f;
}

double deep_bits(double r) {
  const double some = std::exp(-std::sqrt(2.0) * 0.6 / r), more = std::exp(-std::sqrt(2.0) / r);
  const auto entropy = [](double p) {
    return p <= 1e-12 || p >= 1.0 - 1e-12 ? 0.0 : -p * std::log2(p) - (1.0 - p) * std::log2(1.0 - p);
  };
  return entropy(some) + some * (1.0 + (more < 1.0 - 1e-9 ? entropy(more) / (1.0 - more) : 0.0));
}

float DeepTables::log_weight(const DeepLayer& layer, const float* x, const float* centred) const {
  const std::vector<double> f = deep_weight_features(*this, layer, x, centred);
  double sum = 0.0;
  for (size_t c = 0; c < f.size(); ++c) sum += f[c] * static_cast<double>(layer.weight[c]);
  return static_cast<float>(sum);
}

}  // namespace tierkv::calib
