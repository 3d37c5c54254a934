// calibration.h — a calibration as Python holds it: the shared tables, whose class only the library knows.
#pragma once

#include <tuple>
#include <vector>

#include "tierkv/calibration.h"

namespace tierkv::python {

struct Calibration {
  CalibrationPtr tables;
};

// RoPE of each layer as Python has it: (a, b, angle) of each pair.
using RopeTriples = std::vector<std::tuple<uint16_t, uint16_t, double>>;

inline std::vector<calib::Rope> ropes_of(const std::vector<RopeTriples>& layers) {
  std::vector<calib::Rope> ropes;
  for (const RopeTriples& layer : layers) {
    calib::Rope& rope = ropes.emplace_back();
    for (const auto& [a, b, angle] : layer) rope.push_back({a, b, angle});
  }
  return ropes;
}

inline std::vector<RopeTriples> triples_of(const std::vector<calib::Rope>& ropes) {
  std::vector<RopeTriples> layers;
  for (const calib::Rope& rope : ropes) {
    RopeTriples& layer = layers.emplace_back();
    for (const calib::RopePair& pair : rope) layer.emplace_back(pair.a, pair.b, pair.angle);
  }
  return layers;
}

}  // namespace tierkv::python
