// rows.h — one row of a caller's, as floats.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/f16.h"
#include "tierkv/cache.h"

namespace tierkv::learn {

// False: not finite, or so long that its square is not.
inline bool to_floats(const RowsView& rows, uint32_t token, uint32_t head, float* out) {
  const ptrdiff_t at = static_cast<ptrdiff_t>(token) * rows.token_stride + static_cast<ptrdiff_t>(head) * rows.head_stride;
  float length = 0.0f;
  if (rows.type == DType::f32) {
    const float* in = static_cast<const float*>(rows.data) + at;
    for (uint32_t c = 0; c < rows.head_dim; ++c) out[c] = in[c];
  } else {
    const uint16_t* in = static_cast<const uint16_t*>(rows.data) + at;
    const bool half = rows.type == DType::f16;
    for (uint32_t c = 0; c < rows.head_dim; ++c) out[c] = half ? f16_to_f32(in[c]) : bf16_to_f32(in[c]);
  }
  for (uint32_t c = 0; c < rows.head_dim; ++c) length += out[c] * out[c];
  return std::isfinite(length);
}

}  // namespace tierkv::learn
