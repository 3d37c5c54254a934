#include "attn/rows.h"

#include <cstring>

#include "base/f16.h"
#include "quant/isa.h"

namespace tierkv::attn {

float element(const RowsView& rows, ptrdiff_t at) {
  switch (rows.type) {
    case DType::f32: return static_cast<const float*>(rows.data)[at];
    case DType::f16: return f16_to_f32(static_cast<const uint16_t*>(rows.data)[at]);
    case DType::bf16: return bf16_to_f32(static_cast<const uint16_t*>(rows.data)[at]);
  }
  return 0.0f;
}

void widen_row(const RowsView& rows, uint32_t token, uint32_t head, float* out) {
  const ptrdiff_t at = offset_of(rows, token, head);
  if (rows.type == DType::f32) {
    std::memcpy(out, static_cast<const float*>(rows.data) + at, rows.head_dim * sizeof(float));
    return;
  }
  // The kernels take rows of whole vectors.
  if (const quant::Kernels* kernels = rows.head_dim % 16 == 0 ? quant::active_kernels() : nullptr) {
    return kernels->widen(static_cast<const uint16_t*>(rows.data) + at, rows.type == DType::bf16, rows.head_dim, out);
  }
  for (uint32_t c = 0; c < rows.head_dim; ++c) out[c] = element(rows, at + c);
}

}  // namespace tierkv::attn
