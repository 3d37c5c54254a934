// row_moves.h — rows of a caller's tensors to where a launch reads them, and results to where he wants them: one kernel for all of
// a call (rows.cu), and the same in plain loops (row_moves.cc), which the tests' machine does.
#pragma once

#include <cstdint>
#include <span>

#include "attn/rows.h"
#include "tierkv/cache.h"

namespace tierkv::cuda {

// Row (token, head) of `from`, converted to the other's type: to[token*to_token + head*to_head]. Strides are in elements.
struct RowMove {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t from_token = 0, from_head = 0;
  int64_t to_token = 0, to_head = 0;
  uint32_t tokens = 0, heads = 0;
  DType from_type = DType::f32, to_type = DType::f32;
  uint8_t unused[6] = {};  // so that equal moves are equal bytes
};
static_assert(sizeof(RowMove) == 64);

using attn::element_bytes;
inline size_t dense_bytes(const RowsView& rows) {
  return size_t{rows.tokens} * rows.heads * rows.head_dim * element_bytes(rows.type);
}

// To [tokens][heads][head_dim].
RowMove move_dense(const RowsView& from, void* to, DType type);

// Rounds to the nearest, as the cache does with rows in host memory.
void move_rows_on_host(std::span<const RowMove> moves, uint32_t head_dim);

}  // namespace tierkv::cuda
