#include "cache/rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/f16.h"
#include "base/status_macros.h"
#include "quant/isa.h"

namespace tierkv::cache {
namespace {

ptrdiff_t offset_of(const RowsView& rows, uint32_t token, uint32_t head) {
  return static_cast<ptrdiff_t>(token) * rows.token_stride + static_cast<ptrdiff_t>(head) * rows.head_stride;
}

float element(const RowsView& rows, ptrdiff_t at) {
  switch (rows.type) {
    case DType::f32: return static_cast<const float*>(rows.data)[at];
    case DType::f16: return f16_to_f32(static_cast<const uint16_t*>(rows.data)[at]);
    case DType::bf16: return bf16_to_f32(static_cast<const uint16_t*>(rows.data)[at]);
  }
  return 0.0f;
}

// The kernels take rows of whole vectors.
const quant::Kernels* vectors_for(const RowsView& rows) { return rows.head_dim % 16 == 0 ? quant::active_kernels() : nullptr; }

// The largest magnitude that rounds to a finite value of the tail's type.
float largest(bool bf16) { return bf16 ? 3.3895313e38f : 65519.0f; }

// Both kinds of 16-bit floats keep the order of their magnitudes as integers, so rows that are of the tail's type need no
// conversion.
bool half_row_fits(const uint16_t* row, uint32_t n, int16_t infinity) {
  int16_t top = 0;  // signed: the baseline instruction set has a vector maximum for these alone
  for (uint32_t c = 0; c < n; ++c) top = std::max(top, static_cast<int16_t>(row[c] & 0x7FFFu));
  return top < infinity;
}

bool row_fits(const RowsView& rows, ptrdiff_t at, float limit, bool bf16) {
  if (rows.type == DType::bf16 && bf16) return half_row_fits(static_cast<const uint16_t*>(rows.data) + at, rows.head_dim, 0x7F80u);
  if (rows.type == DType::f16) return half_row_fits(static_cast<const uint16_t*>(rows.data) + at, rows.head_dim, 0x7C00u);
  // One pass without early exit, so that it vectorises; the exact place is looked for only when something is wrong.
  bool fits = true;
  if (rows.type == DType::f32) {
    const float* row = static_cast<const float*>(rows.data) + at;
    if (const quant::Kernels* kernels = vectors_for(rows)) return kernels->within(row, rows.head_dim, limit);
    for (uint32_t c = 0; c < rows.head_dim; ++c) fits &= std::fabs(row[c]) <= limit;
  } else {
    const uint16_t* row = static_cast<const uint16_t*>(rows.data) + at;
    for (uint32_t c = 0; c < rows.head_dim; ++c) fits &= std::fabs(bf16_to_f32(row[c])) <= limit;
  }
  return fits;
}

}  // namespace

Status check_shape(const RowsView& rows, const char* what, uint32_t heads, uint32_t head_dim) {
  if (rows.type != DType::f32 && rows.type != DType::f16 && rows.type != DType::bf16) {
    return error(StatusCode::invalid_argument, what, " have an unknown element type ", static_cast<int>(rows.type));
  }
  if (rows.heads != heads || rows.head_dim != head_dim) {
    return error(StatusCode::invalid_argument, what, " are ", rows.heads, " heads x ", rows.head_dim, " channels, this cache has ",
                 heads, " x ", head_dim);
  }
  if (rows.tokens && !rows.data) return error(StatusCode::invalid_argument, what, " have ", rows.tokens, " tokens but no data");
  return {};
}

Status check_finite(const RowsView& rows, const char* what, bool bf16) {
  const float limit = largest(bf16);
  for (uint32_t t = 0; t < rows.tokens; ++t) {
    for (uint32_t h = 0; h < rows.heads; ++h) {
      const ptrdiff_t at = offset_of(rows, t, h);
      if (row_fits(rows, at, limit, bf16)) continue;
      for (uint32_t c = 0; c < rows.head_dim; ++c) {
        const float x = element(rows, at + c);
        if (std::fabs(x) <= limit) continue;
        const char* problem = std::isnan(x)   ? "NaN"
                              : std::isinf(x) ? "infinite"
                                              : "beyond the range of fp16 (65504); use hot_type = bf16";
        return error(StatusCode::invalid_argument, what, ": token ", t, ", head ", h, ", channel ", c, " is ", problem);
      }
    }
  }
  return {};
}

void narrow_row(const RowsView& rows, uint32_t token, uint32_t head, bool bf16, uint16_t* out) {
  const ptrdiff_t at = offset_of(rows, token, head);
  if (rows.type == (bf16 ? DType::bf16 : DType::f16)) {
    std::memcpy(out, static_cast<const uint16_t*>(rows.data) + at, rows.head_dim * sizeof(uint16_t));
    return;
  }
  if (const quant::Kernels* kernels = rows.type == DType::f32 ? vectors_for(rows) : nullptr) {
    return kernels->narrow(static_cast<const float*>(rows.data) + at, bf16, rows.head_dim, out);
  }
  for (uint32_t c = 0; c < rows.head_dim; ++c) {
    const float x = element(rows, at + c);
    out[c] = bf16 ? f32_to_bf16(x) : f32_to_f16(x);
  }
}

void widen_row(const RowsView& rows, uint32_t token, uint32_t head, float* out) {
  const ptrdiff_t at = offset_of(rows, token, head);
  if (rows.type == DType::f32) {
    std::memcpy(out, static_cast<const float*>(rows.data) + at, rows.head_dim * sizeof(float));
    return;
  }
  if (const quant::Kernels* kernels = vectors_for(rows)) {
    return kernels->widen(static_cast<const uint16_t*>(rows.data) + at, rows.type == DType::bf16, rows.head_dim, out);
  }
  for (uint32_t c = 0; c < rows.head_dim; ++c) out[c] = element(rows, at + c);
}

}  // namespace tierkv::cache
