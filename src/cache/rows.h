// rows.h — the caller's rows: shape and finiteness checks that name the place, and conversion to what the tail holds.
#pragma once

#include "tierkv/cache.h"

namespace tierkv::cache {

// `what` is "keys", "values" or "queries" in messages.
Status check_shape(const RowsView& rows, const char* what, uint32_t heads, uint32_t head_dim);

// In one memory, a device's ready after the same work: what the rows of one call are.
inline bool same_memory(const RowsView& a, const RowsView& b) {
  return a.place == b.place && (a.place == MemoryPlace::host || a.ready == b.ready);
}

// Every element finite and within what the 16-bit type can hold (fp16: 65504).
Status check_finite(const RowsView& rows, const char* what, bool bf16);

// Queries, and queries times scale, up to this: sums over 256 channels of keys up to 65504 are then far inside the range of floats.
inline constexpr float kLargestScaledQuery = 1e25f;
Status check_queries(const RowsView& queries, float scale);

// One row as 16-bit floats.
void narrow_row(const RowsView& rows, uint32_t token, uint32_t head, bool bf16, uint16_t* out);

}  // namespace tierkv::cache
