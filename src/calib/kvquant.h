// kvquant.h — what KVQuant (arXiv 2401.18079) learns of a model before it is used: ranges of key channels and codebooks of layers.
//
// Keys:     before RoPE, R(-s) k: there a channel keeps to a range of its own wherever the token stands. low and high leave out the
//           kKvquantOutliers of the sample that lie furthest out, half at either end.
// Values:   per token, so ranges are found when a block is encoded; only the codebook is learnt here.
// Codebook: one per layer, tensor and width, of values normalised to [-1, 1] by their range, outliers left out: weighted k-means
//           (solve/kmeans.h), exact. The paper weighs by squared gradients. Here an error in channel c counts for M(c, c)·range², M
//           being what errors do to the residual stream (PairSums::key_plain and ::value): forward passes alone tell it. Tokens
//           weigh the same: weighed by the attention they got, a few of them decide, and other text fares worse.
// Q-Norm:   at 2 bits the levels are then stretched so that what is decoded has the mean and variance of what was encoded, as in
//           the paper; codes are taken by `edges`, which stay where k-means had them.
// Threads:  immutable once made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "calib/klt.h"
#include "calib/statistics.h"
#include "tierkv/status.h"

namespace tierkv::calib {

inline constexpr double kKvquantOutliers = 0.01;
inline constexpr uint32_t kKvquantMinBits = 2, kKvquantMaxBits = 4;

enum class KvquantTensor : uint8_t { keys = 0, values = 1 };

// x in [-1, 1] has code i when i of the edges are not above it, and is decoded as levels[i].
struct KvquantCodebook {
  std::vector<float> levels;  // 2^bits, ascending
  std::vector<float> edges;   // one fewer, ascending

  uint32_t code(float x) const {
    uint32_t code = 0;
    for (const float edge : edges) code += x >= edge ? 1u : 0u;
    return code;
  }
};

struct KvquantHead {
  std::vector<float> low, high;  // [d], of keys before RoPE
  std::vector<float> weight;     // [d], what a squared error in a channel of a key costs, 1 on average
};

struct KvquantTables {
  uint32_t layers = 0, kv_heads = 0, head_dim = 0;
  std::vector<KvquantHead> heads;          // [layer][kv head]
  std::vector<KvquantCodebook> codebooks;  // [layer][tensor][bits - 2]

  const KvquantHead& head(uint32_t layer, uint32_t h) const { return heads[static_cast<size_t>(layer) * kv_heads + h]; }
  // REQUIRES: bits in 2..4.
  const KvquantCodebook& codebook(uint32_t layer, KvquantTensor tensor, uint32_t bits) const {
    const size_t widths = kKvquantMaxBits - kKvquantMinBits + 1;
    return codebooks[(static_cast<size_t>(layer) * 2 + static_cast<size_t>(tensor)) * widths + bits - kKvquantMinBits];
  }

  void write(ByteWriter& out) const;
  // data_loss: cut short, or numbers that solve_kvquant() could not have written. invalid_argument: another model's shape.
  static Result<KvquantTables> read(ByteReader& in, const ModelId& model);
};

// How many values of a block are kept as they are, beside the codes.
uint32_t kvquant_outliers(uint32_t tokens, uint32_t head_dim);

// Marks in `taken` (tokens x head_dim, all zero before) the `budget` values whose absence narrows the ranges of their tokens the
// most: what a block leaves out before each token's minimum and maximum are taken. Shared by the codec and its calibration.
// REQUIRES: finite rows, head_dim >= 32, budget <= 8·tokens.
void pick_value_outliers(const float* rows, uint32_t tokens, uint32_t head_dim, uint32_t budget, uint8_t* taken);

}  // namespace tierkv::calib
