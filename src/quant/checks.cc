#include "quant/checks.h"

#include <cmath>

#include "base/status_macros.h"

namespace tierkv::quant {

Status check_shape(const BlockShape& shape) {
  if (shape.tokens < 1 || shape.tokens > 256) {
    return error(StatusCode::invalid_argument, "a block of ", shape.tokens, " tokens is not supported; allowed: 1..256");
  }
  if (shape.head_dim < 32 || shape.head_dim > 256 || shape.head_dim % 16 != 0) {
    return error(StatusCode::invalid_argument, "head_dim ", shape.head_dim, " is not supported; allowed: multiples of 16 from 32 to 256");
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
  const size_t n = static_cast<size_t>(shape.tokens) * shape.head_dim;
  // x·0 is 0 for every finite x and NaN otherwise, so one sum over a row finds trouble without a branch per value.
  for (size_t first = 0; first < n; first += shape.head_dim) {
    float sum = 0.0f;
    for (size_t i = first; i < first + shape.head_dim; ++i) sum += rows[i] * 0.0f;
    if (sum == 0.0f) continue;
    for (size_t i = first; i < first + shape.head_dim; ++i) {
      if (!std::isfinite(rows[i])) {
        return error(StatusCode::invalid_argument, "row ", i / shape.head_dim, ", channel ", i % shape.head_dim, " is ", rows[i],
                     "; every value must be finite");
      }
    }
  }
  return Status();
}

Status check_size(size_t have, size_t want) {
  if (have == want) return Status();
  return error(StatusCode::invalid_argument, "the block has ", have, " bytes where this codec has ", want);
}

}  // namespace tierkv::quant
