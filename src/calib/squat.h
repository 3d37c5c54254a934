// squat.h — where queries look, for SQuat (arXiv 2503.24358): the subspace that errors of keys are kept out of.
//
// For a KV head, Q stacks the queries of its group after RoPE, N rows; Q = U diag(sigma) V'. The paper keeps errors small in
// P = I + lambda·D'D, D = diag(sigma_1..r) V_1..r' / sqrt(N), and so does the codec (quant/squat.h). Only Q'Q is needed for that,
// which calibration adds up (PairSums::queries): its eigenvectors are V and its eigenvalues sigma². lambda goes into the stored
// directions.
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

inline constexpr float kSquatLongest = 1e6f;  // a direction: queries are fp16 and lambda is small

struct SquatTables {
  uint32_t layers = 0, kv_heads = 0, head_dim = 0, rank = 0;
  std::vector<float> directions;  // [layer][kv head][rank][head_dim]: sqrt(lambda/N)·sigma_k·V_k, largest first

  std::span<const float> of(uint32_t layer, uint32_t head) const {
    const size_t size = static_cast<size_t>(rank) * head_dim;
    return std::span(directions).subspan((static_cast<size_t>(layer) * kv_heads + head) * size, size);
  }

  void write(ByteWriter& out) const;
  // data_loss: cut short, or numbers that are not finite. invalid_argument: another model's shape.
  static Result<SquatTables> read(ByteReader& in, const ModelId& model);
};

}  // namespace tierkv::calib
