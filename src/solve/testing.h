// testing.h — tables of models that do not exist, for tests and benchmarks of any room: of a synthetic model's statistics
// (calib/synthetic_statistics.h), and of rows that somebody has at hand.
#pragma once

#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "base/f16.h"
#include "calib/calibration.h"
#include "calib/synthetic_statistics.h"
#include "solve/deep.h"
#include "solve/klt.h"
#include "solve/kvquant.h"
#include "solve/oscar.h"
#include "solve/squat.h"

namespace tierkv::solve {

// With a section for klt.
inline Result<CalibrationPtr> klt_calibration(const calib::Statistics& s) {
  auto c = std::make_shared<calib::Calibration>(s, calib::Origin{"synthetic", s.tokens, "test"});
  auto klt = solve_klt(s, nullptr);
  if (!klt.ok()) return klt.status();
  c->klt = std::make_shared<calib::KltTables>(std::move(*klt));
  if (Status status = c->finish(); !status.ok()) return status;
  return CalibrationPtr(std::move(c));
}

inline Result<CalibrationPtr> kvquant_and_squat(const calib::Statistics& s, const SquatOptions& options = {}) {
  auto c = std::make_shared<calib::Calibration>(s, calib::Origin{"synthetic", s.tokens, "test"});
  auto kvquant = solve_kvquant(s, nullptr);
  if (!kvquant.ok()) return kvquant.status();
  c->kvquant = std::make_shared<calib::KvquantTables>(std::move(*kvquant));
  auto squat = solve_squat(s, nullptr, options);
  if (!squat.ok()) return squat.status();
  c->squat = std::make_shared<calib::SquatTables>(std::move(*squat));
  if (Status status = c->finish(); !status.ok()) return status;
  return CalibrationPtr(std::move(c));
}

// A calibration with a section for every codec of the registry that needs one; without the deep archive's.
inline Result<CalibrationPtr> all_tables(const calib::Statistics& s) {
  auto c = std::make_shared<calib::Calibration>(s, calib::Origin{"synthetic", s.tokens, "test"});
  auto klt = solve_klt(s, nullptr);
  if (!klt.ok()) return klt.status();
  c->klt = std::make_shared<calib::KltTables>(std::move(*klt));
  auto kvquant = solve_kvquant(s, nullptr);
  if (!kvquant.ok()) return kvquant.status();
  c->kvquant = std::make_shared<calib::KvquantTables>(std::move(*kvquant));
  auto squat = solve_squat(s, nullptr, {});
  if (!squat.ok()) return squat.status();
  c->squat = std::make_shared<calib::SquatTables>(std::move(*squat));
  auto oscar = solve_oscar(s, nullptr);
  if (!oscar.ok()) return oscar.status();
  c->oscar = std::make_shared<calib::OscarTables>(std::move(*oscar));
  if (Status status = c->finish(); !status.ok()) return status;
  return CalibrationPtr(std::move(c));
}

// Rows of one layer to learn from, [tokens][kv_heads][head_dim]; keys as attention sees them, after RoPE.
struct SampleRows {
  uint32_t tokens = 0, heads = 1, kv_heads = 1, head_dim = 0;
  uint32_t first = 4;  // position of the first token
  std::span<const float> keys, values;
};

// The RoPE of most models: channel c turns with channel c + head_dim/2.
inline calib::Rope usual_rope(uint32_t head_dim) {
  calib::Rope rope;
  for (uint32_t p = 0; p < head_dim / 2; ++p) {
    rope.push_back({static_cast<uint16_t>(p), static_cast<uint16_t>(p + head_dim / 2), std::pow(10000.0, -2.0 * p / head_dim)});
  }
  return rope;
}

// Queries look everywhere, and at a few directions more than elsewhere. `layers` of the same rows.
inline calib::Statistics statistics_of(const SampleRows& rows, const calib::Rope& rope, uint32_t layers = 1) {
  const uint32_t d = rows.head_dim;
  calib::Statistics s;
  s.model = {"rows at hand", 77, layers, rows.heads, rows.kv_heads, d};
  s.tokens = rows.tokens;
  s.ropes.assign(layers, rope);
  for (uint32_t i = 0; i < rows.tokens; ++i) s.positions.push_back(rows.first + i);
  calib::LayerSample sample;
  for (const float x : rows.keys) sample.keys.push_back(f32_to_f16(x));
  for (const float x : rows.values) sample.values.push_back(f32_to_f16(x));
  sample.weight.assign(static_cast<size_t>(rows.tokens) * rows.kv_heads, 1.0f);
  sample.influence = sample.weight;
  s.layers.assign(layers, sample);
  std::mt19937 random(d);
  std::normal_distribution<double> normal;
  for (uint32_t h = 0; h < layers * rows.kv_heads; ++h) {
    calib::PairSums pairs;
    std::vector<double> metric(static_cast<size_t>(d) * d, 0.0);
    for (uint32_t c = 0; c < d; ++c) metric[static_cast<size_t>(c) * d + c] = 1.0;
    for (int i = 0; i < 6; ++i) {
      std::vector<double> q(d);
      for (double& x : q) x = 0.3 * normal(random);
      for (uint32_t r = 0; r < d; ++r) {
        for (uint32_t c = 0; c < d; ++c) metric[static_cast<size_t>(r) * d + c] += q[r] * q[c];
      }
    }
    pairs.key_block = pairs.key_plain = pairs.value = pairs.queries = metric;
    pairs.query_count = 6 + d;
    s.pairs.push_back(std::move(pairs));
  }
  return s;
}

}  // namespace tierkv::solve
