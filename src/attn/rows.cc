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
  widen_halves(static_cast<const uint16_t*>(rows.data) + at, rows.type == DType::bf16, rows.head_dim, out);
}

void widen_halves(const uint16_t* from, bool bf16, uint32_t count, float* out) {
  // The kernels take whole vectors.
  if (const quant::Kernels* kernels = count % 16 == 0 ? quant::active_kernels() : nullptr)
    return kernels->widen(from, bf16, count, out);
  for (uint32_t i = 0; i < count; ++i) out[i] = bf16 ? bf16_to_f32(from[i]) : f16_to_f32(from[i]);
}

void narrow(const float* from, size_t count, DType type, void* to) {
  auto* const bytes = static_cast<unsigned char*>(to);
  for (size_t i = 0; i < count; ++i) {
    const uint16_t half = type == DType::bf16 ? f32_to_bf16(from[i]) : f32_to_f16(from[i]);
    std::memcpy(bytes + i * sizeof half, &half, sizeof half);
  }
}

}  // namespace tierkv::attn
