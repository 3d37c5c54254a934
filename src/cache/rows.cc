#include "cache/rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "attn/rows.h"
#include "base/f16.h"
#include "base/status_macros.h"
#include "quant/isa.h"

namespace tierkv::cache {
namespace {

using attn::element;
using attn::offset_of;

// The kernels take rows of whole vectors.
const quant::Kernels* vectors_for(const RowsView& rows) { return rows.head_dim % 16 == 0 ? quant::active_kernels() : nullptr; }

// The largest magnitude that rounds to a finite value of the tail's type.
float largest(bool bf16) { return bf16 ? 3.3895313e38f : 65519.0f; }

// Both kinds of 16-bit floats keep the order of their magnitudes as integers, so their rows need no conversion.
bool half_row_fits(const uint16_t* row, uint32_t n, int16_t largest_bits) {
  int16_t top = 0;  // signed: the baseline instruction set has a vector maximum for these alone
  for (uint32_t c = 0; c < n; ++c) top = std::max(top, static_cast<int16_t>(row[c] & 0x7FFFu));
  return top <= largest_bits;
}

bool row_fits(const RowsView& rows, ptrdiff_t at, float limit) {
  const auto* half = static_cast<const uint16_t*>(rows.data) + at;
  // The upper half of a float is the bf16 below it.
  if (rows.type == DType::bf16)
    return half_row_fits(half, rows.head_dim, static_cast<int16_t>(std::bit_cast<uint32_t>(limit) >> 16));
  if (rows.type == DType::f16 && limit >= 65504.0f) return half_row_fits(half, rows.head_dim, 0x7BFF);
  // One pass without early exit, so that it vectorises; the exact place is looked for only when something is wrong.
  bool fits = true;
  if (rows.type == DType::f16) {
    for (uint32_t c = 0; c < rows.head_dim; ++c) fits &= std::fabs(f16_to_f32(half[c])) <= limit;
    return fits;
  }
  const float* row = static_cast<const float*>(rows.data) + at;
  if (const quant::Kernels* kernels = vectors_for(rows)) return kernels->within(row, rows.head_dim, limit);
  for (uint32_t c = 0; c < rows.head_dim; ++c) fits &= std::fabs(row[c]) <= limit;
  return fits;
}

Status check_within(const RowsView& rows, const char* what, float limit, const char* too_large) {
  for (uint32_t t = 0; t < rows.tokens; ++t) {
    for (uint32_t h = 0; h < rows.heads; ++h) {
      const ptrdiff_t at = offset_of(rows, t, h);
      if (row_fits(rows, at, limit)) continue;
      for (uint32_t c = 0; c < rows.head_dim; ++c) {
        const float x = element(rows, at + c);
        if (std::fabs(x) <= limit) continue;
        const char* problem = std::isnan(x) ? "NaN" : std::isinf(x) ? "infinite" : too_large;
        return error(StatusCode::invalid_argument, what, ": token ", t, ", head ", h, ", channel ", c, " is ", problem);
      }
    }
  }
  return {};
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
  return check_within(rows, what, largest(bf16), "beyond the range of fp16 (65504); use hot_type = bf16");
}

Status check_queries(const RowsView& queries, float scale) {
  const float limit = scale > 1.0f ? kLargestScaledQuery / scale : kLargestScaledQuery;
  return check_within(queries, "queries", limit, "too large: times scale (where that is above 1) it may be up to 1e25");
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

}  // namespace tierkv::cache
