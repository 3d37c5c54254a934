#include "quant/checks.h"

#include <cmath>

#include "base/status_macros.h"
#include "quant/isa.h"

namespace tierkv::quant {

Status check_shape(const BlockShape& shape) {
  if (shape.tokens < 1 || shape.tokens > 256) {
    return error(StatusCode::invalid_argument, "a block of ", shape.tokens, " tokens is not supported; allowed: 1..256");
  }
  if (shape.head_dim < 32 || shape.head_dim > 256 || shape.head_dim % 16 != 0) {
    return error(StatusCode::invalid_argument, "head_dim ", shape.head_dim,
                 " is not supported; allowed: multiples of 16 from 32 to 256");
  }
  return Status();
}

Status check_packed_shape(const BlockShape& shape) {
  TIERKV_RETURN_IF_ERROR(check_shape(shape));
  if (shape.tokens % 16 != 0) {
    return error(StatusCode::invalid_argument, "a packed block of ", shape.tokens,
                 " tokens is not supported; allowed: multiples of 16 from 16 to 256");
  }
  return Status();
}

Status check_finite(const float* rows, const BlockShape& shape) {
  const uint32_t d = shape.head_dim;
  const Kernels* kernels = active_kernels();
  if (kernels && kernels->within(rows, static_cast<size_t>(shape.tokens) * d, kMaxMagnitude)) return Status();
  for (uint32_t t = 0; t < shape.tokens; ++t) {
    const float* row = rows + static_cast<size_t>(t) * d;
    // A NaN compares false, so counting what is in range finds all three kinds of trouble without a branch per value.
    uint32_t good = 0;
    for (uint32_t c = 0; c < d; ++c) good += std::fabs(row[c]) <= kMaxMagnitude ? 1u : 0u;
    for (uint32_t c = 0; good != d && c < d; ++c) {
      if (std::fabs(row[c]) <= kMaxMagnitude) continue;
      return error(StatusCode::invalid_argument, "row ", t, ", channel ", c, " is ", row[c],
                   "; every value must be finite and at most ", kMaxMagnitude, " in magnitude");
    }
  }
  return Status();
}

Status check_size(size_t have, size_t want) {
  if (have == want) return Status();
  return error(StatusCode::invalid_argument, "the block has ", have, " bytes where this codec has ", want);
}

}  // namespace tierkv::quant
