// oscar.h — OSCAR's rotations (arXiv 2605.17757): of each KV head one for its keys and one for its values.
//
// Keys:     the eigenvectors of Q'Q, the queries of the head's group after RoPE (PairSums::queries), sorted by eigenvalue, largest
//           first, put in bit-reversed order, then a Hadamard transform over them. So the directions queries look in are spread
//           evenly over all channels.
// Values:   the same of V' diag(w) V, w_t = k_t' (Q'Q) k_t, over the sample's tokens.
// Hadamard: over the largest power of two that divides head_dim, each run by itself (as quant/frame.h has it, without its signs).
// Threads:  immutable once made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "calib/statistics.h"
#include "tierkv/status.h"

namespace tierkv::calib {

struct OscarTables {
  uint32_t layers = 0, kv_heads = 0, head_dim = 0;
  std::vector<uint16_t> rotations;  // fp16 [layer][kv head][keys, values][head_dim][head_dim]: rotated = row · matrix

  std::span<const uint16_t> of(uint32_t layer, uint32_t head, bool values) const {
    const size_t size = static_cast<size_t>(head_dim) * head_dim;
    return std::span(rotations).subspan(((static_cast<size_t>(layer) * kv_heads + head) * 2 + (values ? 1 : 0)) * size, size);
  }

  void write(ByteWriter& out) const;
  // data_loss: cut short, or a matrix that is no rotation. invalid_argument: another model's shape.
  static Result<OscarTables> read(ByteReader& in, const ModelId& model);
};

}  // namespace tierkv::calib
