// deep_testing.h — what the tests of deep archives in a cache share: caches of the made-up model, filled, and how far rows are
// apart.
#pragma once

#include "deep/testing.h"
#include "snapshot/testing.h"

namespace tierkv::snapshot::testing {

namespace made_up = tierkv::deep::testing;

inline CalibrationPtr calibration(uint32_t sinks = 4) {
  auto out = std::make_shared<calib::Calibration>(made_up::model().statistics(), calib::Origin());
  out->sinks = sinks;
  out->deep = std::make_shared<calib::DeepTables>(made_up::model().tables());
  EXPECT_TRUE(out->finish().ok());
  return out;
}

// Deep tables for another model of the same heads, as the first layers of the made-up one: enough to park by, however well they
// fit.
inline CalibrationPtr deep_calibration(uint32_t layers, uint32_t kv_heads) {
  calib::Statistics statistics = made_up::model().statistics();
  statistics.model.layers = layers;
  statistics.layers.resize(layers);
  statistics.ropes.resize(layers);
  statistics.pairs.resize(static_cast<size_t>(layers) * kv_heads);
  auto calibration = std::make_shared<calib::Calibration>(statistics, calib::Origin());
  calibration->deep = std::make_shared<calib::DeepTables>(solve::solve_deep(statistics, {}).value());
  EXPECT_TRUE(calibration->finish().ok());
  return calibration;
}

inline CacheConfig config_of(const std::string& spec) {
  CacheConfig config;
  config.num_layers = made_up::kLayers;
  config.num_heads = 2 * made_up::kHeads;
  config.num_kv_heads = made_up::kHeads;
  config.head_dim = made_up::kDim;
  EXPECT_TRUE(apply_inline(spec, config).ok()) << spec;
  return config;
}

struct Filled {
  std::unique_ptr<AdaptiveKVCache> cache;
  SeqId seq = 0;
};

inline Filled filled(const std::string& spec, uint32_t tokens, CalibrationPtr tables = calibration()) {
  Filled out;
  auto made = AdaptiveKVCache::create(config_of(spec), std::move(tables));
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  out.cache = std::move(made).value();
  out.seq = out.cache->add_sequence().value();
  const made_up::Text text = made_up::model().text(tokens, 0);
  for (uint32_t l = 0; l < made_up::kLayers; ++l) {
    const auto view = [&](const std::vector<float>& rows) {
      return RowsView::f32(rows.data(), tokens, made_up::kHeads, made_up::kDim);
    };
    EXPECT_TRUE(out.cache->append(out.seq, l, view(text.keys[l]), view(text.values[l])).ok());
  }
  return out;
}

inline std::vector<float> rows_of(const AdaptiveKVCache& cache, SeqId seq, uint32_t layer, uint32_t first, uint32_t count) {
  std::vector<uint32_t> positions(count);
  for (uint32_t i = 0; i < count; ++i) positions[i] = first + i;
  const size_t side = static_cast<size_t>(count) * made_up::kHeads * made_up::kDim;
  std::vector<float> out(2 * side);
  const Status status = cache.get(seq, layer, positions, out.data(), out.data() + side);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return out;
}

inline double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0.0, energy = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    energy += static_cast<double>(a[i]) * a[i];
  }
  return error / energy;
}

inline DeepOptions at_quality(double quality) {
  DeepOptions options;
  options.quality = quality;
  return options;
}

inline DeepOptions at_ratio(double ratio) {
  DeepOptions options;
  options.ratio = ratio;
  return options;
}

}  // namespace tierkv::snapshot::testing
