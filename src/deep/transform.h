// transform.h — a layer's tables made ready to compute with, and the steps between rows and components.
//
// Encoder and decoder share everything here but analyse(): what one predicts and rebuilds the other does too, bit for bit.
// Rows are [token][dim]; "centred" is less the layer's mean.
// Threads:  immutable once made.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "calib/calibration.h"
#include "calib/deep.h"
#include "deep/kernels.h"
#include "deep/levels.h"

namespace tierkv::deep {

class Transform {
 public:
  // With what encoding needs, or without.
  Transform(const calib::DeepTables& tables, const calib::DeepLayer& layer, bool analysis);

  const calib::DeepLayer& layer() const { return *layer_; }
  uint32_t dim() const { return dim_; }

  // out = the centred prediction from the sources, nearest layer first.
  void predict(const int16_t* const* sources, uint32_t tokens, float* out) const;
  // What a layer after this one gets of it.
  void as_source(const float* centred, uint32_t tokens, int16_t* out) const;
  // rows += what the levels stand for.
  void add_levels(int basis, const LevelBlock& block, float step, int32_t log_step, uint32_t finer, const Centroids& centroids,
                  float* rows) const;

  // Encoder only: components of centred rows, and the length of rows in the metric, squared, summed over tokens.
  void analyse(int basis, const float* rows, uint32_t tokens, float* out) const;
  double metric_energy(const float* rows, uint32_t tokens) const;

 private:
  const calib::DeepTables* tables_;
  const calib::DeepLayer* layer_;
  uint32_t dim_;
  std::vector<float> per_unit_;     // [dim]
  std::vector<float> rows_[2];      // [component][dim]
  std::vector<float> analysis_[2];  // [dim][component]
};

}  // namespace tierkv::deep
