// model_tables.h — calibrations for the random machine's cache: learnt from rows like the machine's own, independent and within
// [-1, 1], with a section for every codec that needs one and for the deep archive.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "calib/deep.h"
#include "solve/testing.h"
#include "tierkv/config.h"

namespace tierkv::testing {

// `which` 1 and 2 are two calibrations of one model: other tables, another id. Solved once a program; null when that failed.
inline CalibrationPtr machine_tables(const CacheConfig& config, uint32_t which) {
  static std::map<std::array<uint32_t, 3>, CalibrationPtr> all;
  CalibrationPtr& made = all[{config.num_layers, config.num_kv_heads, which}];
  if (made) return made;
  solve::SampleRows sample;
  sample.tokens = 1024, sample.heads = config.num_heads, sample.kv_heads = config.num_kv_heads, sample.head_dim = config.head_dim;
  std::mt19937 rng(which);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> keys(static_cast<size_t>(sample.tokens) * sample.kv_heads * sample.head_dim), values(keys.size());
  calib::Statistics s;
  for (uint32_t l = 0; l < config.num_layers; ++l) {
    for (float& x : keys) x = uniform(rng);
    for (float& x : values) x = uniform(rng);
    sample.keys = keys, sample.values = values;
    calib::Statistics layer = solve::statistics_of(sample, solve::usual_rope(config.head_dim), config.num_layers);
    if (l == 0) s = std::move(layer);
    else s.layers[l] = std::move(layer.layers[0]);
  }
  auto tables = solve::all_tables(s);
  auto deep = solve::solve_deep(s, {});
  if (!tables.ok() || !deep.ok()) return nullptr;
  auto out = std::make_shared<calib::Calibration>(s, calib::Origin{"the machine's rows", s.tokens, "test"});
  out->klt = (*tables)->klt;
  out->kvquant = (*tables)->kvquant;
  out->squat = (*tables)->squat;
  out->oscar = (*tables)->oscar;
  out->deep = std::make_shared<calib::DeepTables>(std::move(*deep));
  if (!out->finish().ok()) return nullptr;
  return made = out;
}

}  // namespace tierkv::testing
