// rows.h — reading the caller's rows: shape and finiteness checks that name the place, and conversion.
#pragma once

#include "tierkv/cache.h"

namespace tierkv::cache {

// `what` is "keys", "values" or "queries" in messages.
Status check_shape(const RowsView& rows, const char* what, uint32_t heads, uint32_t head_dim);

// Every element finite and within what the 16-bit type can hold (fp16: 65504).
Status check_finite(const RowsView& rows, const char* what, bool bf16);

// One row as 16-bit floats / as floats.
void narrow_row(const RowsView& rows, uint32_t token, uint32_t head, bool bf16, uint16_t* out);
void widen_row(const RowsView& rows, uint32_t token, uint32_t head, float* out);

}  // namespace tierkv::cache
