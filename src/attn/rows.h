// rows.h — elements of the caller's rows (RowsView), and rows as floats.
//
// REQUIRES: rows in host memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tierkv/cache.h"

namespace tierkv::attn {

inline ptrdiff_t offset_of(const RowsView& rows, uint32_t token, uint32_t head) {
  return static_cast<ptrdiff_t>(token) * rows.token_stride + static_cast<ptrdiff_t>(head) * rows.head_stride;
}

float element(const RowsView& rows, ptrdiff_t at);

void widen_row(const RowsView& rows, uint32_t token, uint32_t head, float* out);

// `count` elements of 16 bits.
void widen_halves(const uint16_t* from, bool bf16, uint32_t count, float* out);

}  // namespace tierkv::attn
