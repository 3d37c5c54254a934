// probe_trials.h — which errors probing makes, in which layers and how loud, and what the tables predict of them.
#pragma once

#include <cstdint>
#include <vector>

#include "calib/calibration.h"

namespace tierkv::llama {

enum Side { kKeys = 0, kValues = 1 };

struct Trial {
  uint32_t layer = 0;
  Side side = kKeys;
  double gain = 0.0;
  double distortion = 0.0;
  std::vector<double> blocks;  // mean divergence of each stretch of tokens
};

struct Trials {
  std::vector<Trial> loud;      // both sides of every layer, at the same distortion where they can be
  std::vector<Trial> whispers;  // some layers with next to none
};

Trials plan_trials(const calib::Calibration& c);

// Whether every KV head of a layer has a basis: layers without are not probed.
bool has_basis(const calib::Calibration& c, uint32_t layer);

}  // namespace tierkv::llama
