// rows.h — elements of the caller's rows (RowsView), rows as floats, and floats as results.
//
// REQUIRES: rows in host memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tierkv/cache.h"

namespace tierkv::attn {

inline size_t element_bytes(DType type) { return type == DType::f32 ? 4 : 2; }

inline ptrdiff_t offset_of(const RowsView& rows, uint32_t token, uint32_t head) {
  return static_cast<ptrdiff_t>(token) * rows.token_stride + static_cast<ptrdiff_t>(head) * rows.head_stride;
}

float element(const RowsView& rows, ptrdiff_t at);

void widen_row(const RowsView& rows, uint32_t token, uint32_t head, float* out);

// `count` elements of 16 bits.
void widen_halves(const uint16_t* from, bool bf16, uint32_t count, float* out);

// Floats as 16-bit ones of `type`, rounded to the nearest. `to` may be where they are.
void narrow(const float* from, size_t count, DType type, void* to);

}  // namespace tierkv::attn
