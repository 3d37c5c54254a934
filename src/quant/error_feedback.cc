#include "quant/error_feedback.h"

#include <algorithm>
#include <limits>

namespace tierkv::quant {

ErrorFeedback::ErrorFeedback(float* metric, uint32_t head_dim) : rows_(metric), head_dim_(head_dim) {
  const uint32_t d = head_dim;
  for (uint32_t c = d; c-- > 0;) {
    float* row = rows_ + static_cast<size_t>(c) * d;
    const float inverse = 1.0f / std::max(row[c], std::numeric_limits<float>::min());
    for (uint32_t j = 0; j < c; ++j) {
      const float part = row[j] * inverse;
      float* left = rows_ + static_cast<size_t>(j) * d;
      for (uint32_t i = 0; i <= j; ++i) left[i] -= part * row[i];
    }
    for (uint32_t j = 0; j < c; ++j) row[j] *= inverse;
  }
}

}  // namespace tierkv::quant
