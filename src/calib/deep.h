// deep.h — tables of the deep archive: what a layer's keys and values look like once the layers before them are known.
//
// Vector:   x = [keys before RoPE of all KV heads ; values of all KV heads], 2·kv_heads·head_dim numbers per token and layer.
// Predict:  x - mean ≈ B·[what the decoder has of the one or two layers before], least squares with a ridge. Integers: the sources
//           are rounded to units of 1/128 of their spread, the rows of B to 16 bits with one scale, so that every machine gets the
//           same sums.
// Basis:    with M the metric of errors (block diagonal: PairSums::key_plain for a head's keys, PairSums::value for its values,
//           ridged, for a token that is read as much as the median one is), S = M^½ and U the eigenvectors of S C S: components
//           U'S·r, and back r = S^-1 U·c. Two of them: C the covariance of what is left after the prediction, and of x - mean
//           itself, for blocks in which the prediction does not pay. An error in a component is an error of the residual stream:
//           one step serves all components, layers and heads.
// Weight:   log of what an error in a token's key is expected to do to later queries (LayerSample::influence), against the ordinary
//           token's: a linear function of x, its norms and its length in the metric, fitted on the sample. Tokens that are read
//           more get finer steps.
// Sums:     |row of B| summed is at most 65535 for each source and sources are below 2^15: 32 bits hold every product (read()
//           checks).
// Threads:  immutable once made.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "calib/klt.h"
#include "calib/statistics.h"
#include "tierkv/status.h"

namespace tierkv::calib {

inline constexpr int kDeepPlain = 0, kDeepPredicted = 1;  // the two bases
inline constexpr uint32_t kDeepRowSum = 65535;
inline constexpr uint32_t kDeepMostDim = 1u << 14;

struct DeepBasis {
  std::vector<uint16_t> rows;     // fp16 [component][dim], times 2^exponent: x = … + sum of component · row
  std::vector<int16_t> exponent;  // [component]
  std::vector<int16_t> spread;    // [component]: log2 of the standard deviation in 1/256, largest first

  bool empty() const { return rows.empty(); }
};

struct DeepLayer {
  uint32_t layer = 0;        // of the model
  std::vector<float> mean;   // [dim]
  std::vector<float> unit;   // [dim], of this layer as a source
  uint32_t sources = 0;      // layers of the list before this one that predict it: 0, 1 or 2, the nearest first
  std::vector<float> scale;  // [dim]
  std::vector<int16_t>
      predict;                // [source][dim][dim]; prediction i = scale i · sum over sources and j of predict[..][i][j]·source j
  DeepBasis basis[2];         // kDeepPlain, kDeepPredicted (empty without sources)
  std::vector<float> metric;  // [2·kv_heads][head_dim][head_dim]: of each head's keys, then of each head's values
  std::vector<float> weight;  // [1 + dim + 3·kv_heads]: constant, x - mean, then logs of |k|², k'Mk and |v|² of each head
};

struct DeepTables {
  uint32_t layers = 0, kv_heads = 0, head_dim = 0;  // of the model
  std::vector<DeepLayer> coded;                     // layers that see the whole sequence, ascending

  uint32_t dim() const { return 2 * kv_heads * head_dim; }
  // log of the weight of a token against an ordinary one's; x as above, `centred` = x - mean.
  float log_weight(const DeepLayer& layer, const float* x, const float* centred) const;

  void write(ByteWriter& out) const;
  static Result<DeepTables> read(ByteReader& in, const ModelId& model);
};

// What DeepLayer::weight multiplies: 1, x - mean, then the logs of each head. x as above, `centred` = x - mean.
std::vector<double> deep_weight_features(const DeepTables& tables, const DeepLayer& layer, const float* x, const float* centred);

// Bits of a Laplace component whose spread is r steps, quantized as the archive does.
double deep_bits(double r);

}  // namespace tierkv::calib
